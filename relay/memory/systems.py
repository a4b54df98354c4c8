"""The memory systems that come with this relay. Imported where a relay or a client is put together,
never by the relay's core or the policies."""

from __future__ import annotations

from typing import Final

from relay.memory.aman.system import AMAN
from relay.memory.anamnesis.system import ANAMNESIS
from relay.memory.nmem.system import NMEM
from relay.memory.registry import MemorySystems
from relay.memory.snowclaw.system import SNOWCLAW
from relay.memory.transcripts.system import TRANSCRIPTS

MEMORY_SYSTEMS: Final = MemorySystems((AMAN, TRANSCRIPTS, SNOWCLAW, NMEM, ANAMNESIS))
