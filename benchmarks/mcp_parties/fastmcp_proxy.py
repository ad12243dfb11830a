"""Run FastMCP's proxy as its documentation shows it, in an environment of its own.

python fastmcp_proxy.py COMMAND...
"""

import sys

from fastmcp.server import create_proxy

command, *args = sys.argv[1:]
proxy = create_proxy({"mcpServers": {"bench": {"command": command, "args": args}}})
proxy.run(transport="stdio", show_banner=False)
