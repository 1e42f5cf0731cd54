"""Every rule of the linter, as one table: how bad it is from which release on, why, what to do, and where that comes from."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_ext.topology.lint_model import Rule
from slurm_ext.topology.lint_rules_files import FILES
from slurm_ext.topology.lint_rules_slurm import SLURM
from slurm_ext.topology.lint_rules_units import UNITS

RULES: Mapping[str, Rule] = {entry.id: entry for entry in (*FILES, *UNITS, *SLURM)}
