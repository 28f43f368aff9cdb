"""The short form: some damaged files for every reader of the tools."""

from __future__ import annotations

import pytest

from campaign.python_readers import all_readers
from campaign.readers import try_reader
from campaign.tally import Scope

READERS = {reader.name: reader for reader in all_readers()}
FILES, COMMANDS = 15, 3


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_refused_by_name(name: str) -> None:
    reader = READERS[name]
    scope = Scope(seed=2)
    draws = scope.draws(name, COMMANDS if reader.is_slow else FILES)
    assert try_reader(reader, draws).violations == []
