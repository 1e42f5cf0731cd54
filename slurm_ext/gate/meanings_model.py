"""What a finding means, as the tables of meanings hold it."""

from __future__ import annotations

from slurm_ext.typed import NamedTuple

#: Whether a finding convicts its node: always, never, never since it is unknown, or it depends (then `convicts` says on what).
YES = "yes"
NO = "no"
UNKNOWN = "no: the verdict is unknown"


class Meaning(NamedTuple):
    """One finding in plain words. `id` is whole, or the beginning of a family where it ends with `-` or `.`.

    `remedy` names the recipe in meanings_remedies.RECIPES; `steps` come before it and are about this finding alone.
    """

    id: str
    means: str
    remedy: str
    convicts: str
    pages: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()

    @property
    def is_family(self) -> bool:
        """True where it stands for all ids that begin so."""
        return self.id.endswith(("-", "."))
