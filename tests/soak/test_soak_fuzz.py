"""Fuzzing for hours: what reads text that others wrote never raises anything but its own error, and never hangs."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_ext import events, request
from slurm_ext.config import yaml_file
from slurm_ext.slurm import hostlist, parse

#: About an hour each on two cores.
EXAMPLES = int(os.environ.get("FMSLURM_SOAK_EXAMPLES", "300000"))
soaked = settings(max_examples=EXAMPLES, deadline=2000, suppress_health_check=list(HealthCheck))


@pytest.mark.soak
@soaked
@given(st.binary(max_size=4000))
def test_yaml(content: bytes) -> None:
    yaml_file.parse(content)


@pytest.mark.soak
@soaked
@given(st.text(alphabet="ab0123456789[]-, \n\x00é", max_size=300))
def test_hostlists(text: str) -> None:
    try:
        names = hostlist.expand(text)
    except hostlist.HostlistError:
        return
    assert hostlist.expand(hostlist.fold(names)) is not None


@pytest.mark.soak
@soaked
@given(st.text(alphabet=st.sampled_from("fm:1;rncbo=/.%~ \n\t0129abz..é"), max_size=300))
def test_tokens(text: str) -> None:
    found = request.parse(text)
    if found is not None:
        assert request.parse(request.render(found)) == found


@pytest.mark.soak
@soaked
@given(st.text(max_size=2000))
def test_lines_of_the_trail(text: str) -> None:
    event = events.from_line(text)
    if event is not None:
        assert events.from_line(events.to_line(event)) is not None


@pytest.mark.soak
@soaked
@given(st.text(max_size=2000))
def test_slurms_answers(text: str) -> None:
    parse.nodes(text)
    parse.config(text)
    parse.topology(text)
