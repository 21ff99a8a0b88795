"""A stream in a browser: server, protocol, scheduler and client. Needs the extra `serve`."""
