"""Serve one tool that does nothing, in plain Python."""

import json
import sys

TOOL = {
    "name": "write",
    "description": "Does nothing.",
    "inputSchema": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "number": {"type": "integer"}},
        "required": ["path"],
    },
}

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, result = message.get("method"), {}
    if method == "initialize":
        result = {
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "bench", "version": "1"},
        }
    elif method == "tools/list":
        result = {"tools": [TOOL]}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": "done"}], "isError": False}
    answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
    if method == "server/discover":
        del answer["result"]
        answer["error"] = {"code": -32601, "message": "a server with a handshake"}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
