"""SNS's Publish, with the rights of the instance's role. boto3 is imported on use."""

from __future__ import annotations

from slurm_ext.errors import LackingError

#: What SNS takes of a subject (ASCII, below 100 characters) and of a message (bytes).
SUBJECT_CHARS, MESSAGE_BYTES = 99, 256 * 1024


def publish(
    arn: str, region: str, subject: str, text: str, *, group: str = "", deduplication: str = "", timeout_s: float = 10.0
) -> str:
    """Publish one message to a topic and return SNS's id of it: one try, no retries of boto3's own.

    `group` and `deduplication` are for FIFO topics alone. Raise LackingError with AWS's own words.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    settings = Config(
        connect_timeout=timeout_s / 2, read_timeout=timeout_s, retries={"mode": "standard", "total_max_attempts": 1}
    )
    fifo = {"MessageGroupId": group, "MessageDeduplicationId": deduplication} if arn.endswith(".fifo") else {}
    body = text.encode()[:MESSAGE_BYTES].decode("utf-8", "ignore")
    line = "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in subject)[:SUBJECT_CHARS]
    try:
        client = boto3.client("sns", region_name=region, config=settings)
        answer = client.publish(TopicArn=arn, Subject=line.lstrip() or "fmslurm", Message=body, **fifo)
    except (BotoCoreError, ClientError, ValueError) as exc:
        raise LackingError(
            f"SNS Publish: {exc}", remedy="Allow sns:Publish on the topic to the instance's role"
        ) from exc
    return str(answer.get("MessageId", ""))
