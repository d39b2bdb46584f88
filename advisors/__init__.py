"""The advisors that come with the library."""

from chatclient.advisors.simple_logger import SimpleLoggerAdvisor
from chatclient.advisors.tool_calling import ToolCallingAdvisor

__all__ = ["SimpleLoggerAdvisor", "ToolCallingAdvisor"]
