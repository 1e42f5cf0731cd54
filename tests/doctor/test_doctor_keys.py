"""What doctor says of munge and the site's keys, and that its probe looks at real ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_ext import keys
from slurm_ext.config.locate import Located
from slurm_ext.config.model import Mode, Settings, Site
from slurm_ext.doctor import collect
from slurm_ext.doctor.model import FAIL, OK, UNKNOWN, WARN, Facts, KeyAge
from slurm_ext.doctor.rules import examine

ON, OFF = Settings(mode=Mode(burnin="shadow")), Settings()
PCS = {"AuthType": "auth/slurm"}
PLAIN = {"AuthType": "auth/munge"}
YOUNG = KeyAge("aaaa", 3.0, 1800.0)


def states(facts: Facts) -> dict[str, str]:
    return {result.id: result.state for result in examine(facts) if result.id.startswith(("munge", "channel"))}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (Facts(ON, munge=True), {"munge.answers": OK}),
        (Facts(ON, munge=False), {"munge.answers": FAIL}),
        (Facts(ON, munge=False, slurm_config=PCS), {"munge.answers": FAIL}),
        (Facts(OFF, munge=False, slurm_config=PCS), {"munge.answers": WARN}),
        (Facts(OFF, munge=False, slurm_config=PLAIN), {"munge.answers": FAIL}),
        (Facts(ON, munge=False, slurm_config=PCS, keys=(YOUNG,)), {"munge.answers": OK, "channel.key": OK}),
        (Facts(ON, munge=False, slurm_config=PLAIN, keys=(YOUNG,)), {"munge.answers": FAIL, "channel.key": OK}),
        (Facts(ON, munge=True, openssl=False), {"munge.answers": OK, "channel.openssl": FAIL}),
        (Facts(OFF, munge=True, openssl=False), {"munge.answers": OK}),
        (Facts(ON, munge=True, keys=None), {"munge.answers": OK, "channel.key": UNKNOWN}),
        (Facts(ON, munge=False, keys=None), {"munge.answers": FAIL, "channel.key": FAIL}),
    ],
)
def test_one_of_munge_and_key_must_be_there(facts: Facts, expected: dict[str, str]) -> None:
    assert states(facts) == expected


@pytest.mark.parametrize(
    ("ages", "state", "words"),
    [
        ((KeyAge("a", 365.0, 1460.0),), OK, "365 days"),
        ((KeyAge("a", 366.0, 1459.0),), WARN, "366 days"),
        ((KeyAge("a", 10.0, 80.0),), WARN, "expires in 80"),
        ((KeyAge("a", 1825.0, -0.1),), FAIL, "expired"),
        ((KeyAge("a", 30.0, 1795.0), KeyAge("b", 400.0, 1425.0)), OK, "30 days"),
        ((KeyAge("a", 31.0, 1794.0), KeyAge("b", 400.0, 1425.0)), WARN, "b is still valid"),
    ],
)
def test_the_age_of_keys(ages: tuple[KeyAge, ...], state: str, words: str) -> None:
    found = [r for r in examine(Facts(ON, munge=True, keys=ages)) if r.id == "channel.key"]
    assert [r.state for r in found] == [state]
    assert words in found[0].text
    assert found[0].remedy or state == OK


def test_the_probe_reads_this_machines_keys(tmp_path: Path) -> None:
    settings = Settings(site=Site(state_dir=str(tmp_path), munge_socket=f"{tmp_path}/none"))
    located = Located(settings, "", {})
    errors: dict[str, str] = {}
    assert collect._keys(located, errors) == ()
    (key,) = keys.create(f"{tmp_path}/keys").added
    (found,) = collect._keys(located, errors) or ()
    assert found.id == key.id
    assert 0 <= found.age_d < 1 < found.left_d
    os.chmod(key.path, 0o644)
    assert collect._keys(located, errors) is None
    assert "root's eyes" in errors["keys"]
    assert collect._munge_answers(located, errors) is False
