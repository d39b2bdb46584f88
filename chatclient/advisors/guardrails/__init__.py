"""Advisors that check or block input and output."""
