"""Everything of attention_cpp for torch. Importing it lets torch's threads do the library's work."""

from .threads import share_threads

share_threads()
