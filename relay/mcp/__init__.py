"""An MCP server for coding agents: nmem's tools over its local cache (M-29).

    async with Toolbox(nmem, Place(folder, project), unix_now) as toolbox:
        await serve_stdio(server_of(toolbox))

Needs the extra `mcp`. Reads the cache, which is synchronised with the relay before each answer if
the relay is reachable. Records are signed with the agent's key.
"""
