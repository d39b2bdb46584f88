"""Advisors that add retrieved documents to a prompt."""
