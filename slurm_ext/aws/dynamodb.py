"""ParallelCluster's own map of nodes: a DynamoDB table with one row a node, overwritten at each launch and never deleted.

So a row may be of an instance that is long gone: whoever uses it compares it with what Slurm and EC2 say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from slurm_ext.aws.service import Refused, Service
from slurm_ext.aws.trouble import Said, explain
from slurm_ext.patterns import pattern

CALL, PERMISSION = "DynamoDB Scan", "dynamodb:Scan (or dynamodb:GetItem)"

#: So many rows are asked for one by one where the table may not be read whole.
SINGLE_MAX = 2_000

_INSTANCE = pattern(r"i-[0-9a-f]{8,32}")


def node_table(dynamodb: Service, table: str, nodes: Iterable[str]) -> dict[str, str]:
    """Return node -> instance id of the rows of these nodes. Raise LackingError with AWS's own words.

    The head node's usual role may get single rows only: then each of these nodes is asked for, up to SINGLE_MAX.
    """
    wanted = sorted(set(nodes))
    try:
        try:
            rows = list(_scan(dynamodb, table))
        except Refused as refused:
            if refused.said.code != "AccessDeniedException" or len(wanted) > SINGLE_MAX:
                raise
            rows = list(_single(dynamodb, table, wanted))
    except Refused as refused:
        if refused.said.code == "ResourceNotFoundException":
            said = Said("no such table", f"{table} is not in this account and region", False)
            raise explain(said, CALL, PERMISSION) from refused
        raise explain(refused.said, f"{CALL} of {table}", PERMISSION) from refused
    mine = set(wanted)
    found: dict[str, str] = {}
    for row in rows:
        node, instance = _word(row, "Id"), _word(row, "InstanceId")
        # The table holds the fleet's status as well, under ids that are no nodes.
        if node in mine and _INSTANCE.fullmatch(instance):
            found[node] = instance
    return found


def _scan(dynamodb: Service, table: str) -> Iterable[Mapping[str, Any]]:
    start: Any = None
    while True:
        more = {"ExclusiveStartKey": start} if start else {}
        answer = dynamodb.ask(
            "scan", TableName=table, ProjectionExpression="Id, InstanceId", ConsistentRead=True, **more
        )
        yield from answer.get("Items") or ()
        following = answer.get("LastEvaluatedKey")
        if not following:
            return
        if following == start:
            raise Refused("scan", Said("", "the server hands out the same page for ever", False))
        start = following


def _single(dynamodb: Service, table: str, nodes: list[str]) -> Iterable[Mapping[str, Any]]:
    get = partial(dynamodb.ask, "get_item", TableName=table, ConsistentRead=True)
    questions = {node: partial(get, Key={"Id": {"S": node}}) for node in nodes}
    for _, answer in dynamodb.ask_all(questions, stop=lambda _said: True):
        if row := answer.get("Item"):
            yield row


def _word(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    text = value.get("S") if isinstance(value, dict) else None
    return text if isinstance(text, str) else ""
