"""The only room that speaks to AWS."""
