"""Click commands: parse, call one room, print."""
