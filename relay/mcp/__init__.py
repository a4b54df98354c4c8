"""The memory of coding agents as an MCP server: nmem's tools over its local cache. M-29.

    async with Toolbox(nmem, Place(folder, project), unix_now) as toolbox:
        await serve_stdio(server_of(toolbox))

Needs the extra `mcp`. Reads the cache, which is made like the relay before each answer where the
relay can be reached; what a tool writes is signed with the agent's key like any other record.
"""
