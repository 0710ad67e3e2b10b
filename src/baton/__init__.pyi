# What type checkers see of the package: its clients are imported lazily at run time.
from baton.runtime.client.aio import AsyncClient as AsyncClient
from baton.runtime.client.threads import Client as Client

__version__: str
