"""What AOTAutograd and lowc have made of a graph of Dynamo's, kept, so that the next process traces nothing.

torch has a cache for that, AOTAutogradCache: what AOTAutograd needs to call two compiled graphs (which inputs are written to,
which results are views, what is saved for the backward pass, guards on sizes), and the names under which another cache has
these.  Inductor uses it.  lowc has torch use it for lowc as well, with three things of its own:

* the key, ``traced`` and ``ambient``: torch's own takes a tenth of a second (it reads all of torch's sources), looks at
  Inductor's options, not lowc's, and takes ops of users as never changing;
* the place, lowc's cache: entries with a checksum, in a folder that is the user's alone, which is kept below a limit;
* what a name stands for: an entry of lowc's cache, bound at once.  Without it there is no hit.

    Dynamo's graph ─ text ─ entry? ── yes ─ torch: guards ─ entries of its graphs ─ callable
                                └──── no ── AOTAutograd ─ lowc ─ entry

For this, four of torch's functions ask lowc first.  They do as ever for whoever else calls them, and where torch is not one of
``VERSIONS``, lowc does without.
"""

import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._functorch import config
from torch._functorch._aot_autograd import autograd_cache as torchs
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._guards import TracingContext
from torch.utils._python_dispatch import _disable_current_modes

from lowc.frontend.ambient import text_of_settings, text_of_thread
from lowc.frontend.text import NoTextError
from lowc.frontend.traced import text_of_traced

if TYPE_CHECKING:
    from lowc.frontend.unread import Source

log = logging.getLogger("lowc.cache")

Compiled = Callable[[list[Any]], Sequence[Any]]
Part = tuple[str, str, list[Tensor]]
"""A compiled graph: its name, the digest of its entry's key, the tensors that it holds."""

VERSIONS = ("2.11", "2.12", "2.13")
"""Of torch.  What is used of it here is private; these were read, and the first and the last tried."""
CONSTANTS = 1 << 16
"""Bytes of a tensor that a graph may hold."""


if TYPE_CHECKING:  # making a protocol takes as long as ten nodes
    from typing import Protocol

    class Place(Protocol):
        """Where it is kept; the cache of lowc, under one set of options."""

        def get(self, text: str, devices: list[str]) -> list[bytes]: ...

        def put(self, text: str, devices: list[str], content: bytes) -> None: ...

        def bind(self, name: str, digest: str, constants: list[Any]) -> tuple[Compiled, Callable[[], None]] | None: ...


class Lookup:
    """For one graph of Dynamo's.  ``missed`` is called before AOTAutograd traces anything, if it does."""

    def __init__(self, place: "Place", missed: Callable[[], object]) -> None:
        self._place, self._missed = place, missed
        self._text, self._devices, self._settings = "", list[str](), ""
        self.keyed = False
        """Whether there is a key, so that what is compiled may be kept."""

    def key(self, gm: Any, args: Sequence[Any], aot_config: Any) -> str:
        """The key for torch.  Raises what makes torch do without its cache."""
        try:
            self._settings = text_of_settings()
            text, self._devices = text_of_traced(gm, args, aot_config)
            self._text = "\n".join((text_of_thread(), self._settings, text))
        except NoTextError as error:
            raise torchs.BypassAOTAutogradCache(str(error)) from error
        except Exception:
            log.debug("a graph of Dynamo's is not looked up", exc_info=True)
            raise  # torch does without, and says so in its own log
        self.keyed = True
        return _Key(f"lowc{sha256(self._text.encode()).hexdigest()}", self)

    def candidates(self) -> Iterator[tuple[Any, bytes, bool]]:
        """What was kept for the key: of torch's, its pickle, and whether it was found here.  torch asks its guards."""
        for content in self._place.get(self._text, self._devices):
            if entry := self._opened(content):
                yield entry, content, True

    def _opened(self, content: bytes) -> Any:
        """What torch has pickled, with graphs in place of their names; None if one is not there."""
        with _disable_current_modes():
            entry: Any = pickle.loads(content)
        forward = self._place.bind(*_part(entry.compiled_fw))
        backward = entry.compiled_bw and self._place.bind(*_part(entry.compiled_bw))
        if not forward or (entry.compiled_bw and not backward):
            return None
        entry.compiled_fw = _Loaded(*forward)
        if backward:
            # Dynamo may be watching whoever asks for gradients, and shall not trace lowc.
            loaded = _Loaded(boxed(hidden(backward[0])), backward[1])
            loaded.backward_state_indices = entry.compiled_bw.backward_state_indices
            loaded.num_symints_saved_for_bw_ = entry.compiled_bw.num_symints_saved_for_bw_
            entry.compiled_bw = loaded
        return entry

    def put(self, content: bytes) -> None:
        """Keeps what torch has pickled, unless the backward pass was compiled under other settings than the forward pass."""
        context = TracingContext.try_get()
        try:
            if self._settings != text_of_settings() or (context and context.guards_context.aotautograd_guards):
                return
            with _disable_current_modes():
                entry = pickle.loads(content)
                # For logs only, and as large as all the rest: who logs these graphs, traces them (``ambient``).
                entry.aot_joint_graph_str = entry.aot_forward_graph_str = entry.aot_backward_graph_str = None
                # What an entry by itself would be called with, if it were: it is found by who has that.
                entry.sanitized_aot_config.aot_autograd_arg_pos_to_source = None
                # lowc's backward passes leave what they are given as it is, whether or not it is asked for again.
                entry.runtime_metadata.bw_donated_idxs = []
                self._place.put(self._text, self._devices, pickle.dumps(entry))
        except Exception as error:
            log.warning("what AOTAutograd has traced cannot be kept: %s: %s", type(error).__name__, error)
            log.debug("the reason in full", exc_info=True)
        self._text = ""  # torch holds keys for as long as what was compiled

    def loaded(self, found: bool) -> None:
        """torch has looked."""
        if found:
            self._text = ""
        else:
            self._missed()


class _Key(str):
    """What torch hands around as the key; only the lookup in it tells keys apart."""

    __slots__ = ("lookup",)
    lookup: Lookup

    def __new__(cls, text: str, lookup: Lookup) -> "_Key":
        made = super().__new__(cls, text)
        made.lookup = lookup
        return made


class _Loaded:
    """In place of torch's names of compiled graphs: the graph itself."""

    backward_state_indices: list[int]
    num_symints_saved_for_bw_: int

    def __init__(self, compiled: Compiled, used: Callable[[], None]) -> None:
        self._compiled, self._used = compiled, used

    def load(self, *_: Any) -> Compiled:
        return self._compiled

    def post_compile(self, compiled: Compiled, *_: Any) -> Compiled:
        self._used()
        counters["lowc"]["graphs"] += 1
        return compiled


def _part(named: Any) -> Part:
    return named.fx_graph_cache_info[0]


def name(compiled: Any, source: "Source") -> None:
    """Tells torch the name of ``compiled``, which is what was made of ``source`` and nothing more, if it has one."""
    held = source.constants
    if source.kept and all(t.device.type == "cpu" and type(t) is Tensor and t.nbytes <= CONSTANTS for t in held):
        part: Part = (source.name, source.kept, held)
        compiled._fx_graph_cache_key = part


def rename(compiled: Any, wrapper: Any) -> None:
    """Gives ``wrapper``, which does what ``compiled`` does, its name."""
    if part := getattr(compiled, "_fx_graph_cache_key", None):
        wrapper._fx_graph_cache_key = part


def hidden(function: Any) -> Any:
    """``function``, not to be traced by Dynamo."""
    hide: Any = torch._dynamo.disable
    return hide(function)


def boxed(compiled: Any) -> Compiled:
    """``compiled``, marked as taking one list."""
    if getattr(compiled, "_boxed_call", False):
        return compiled
    try:
        compiled._boxed_call = True
        return compiled
    except AttributeError:

        def run(args: list[Any]) -> Sequence[Any]:
            return compiled(args)

        run._boxed_call = True
        return run


# ------------------------------------------------------------ torch's functions

_ASKING: ContextVar[Lookup | None] = ContextVar("lowc's lookup", default=None)
_LOCK = Lock()


class asking:
    """Inside, AOTAutograd's cache asks ``lookup``."""

    def __init__(self, lookup: Lookup | None) -> None:
        self._lookup = lookup

    def __enter__(self) -> None:
        self._token = _ASKING.set(self._lookup)

    def __exit__(self, *_: object) -> None:
        _ASKING.reset(self._token)


def asked(compiler: Callable[..., Compiled]) -> Callable[..., Compiled]:
    """``compiler`` of forward graphs, of a kind for which AOTAutograd's cache is asked."""
    kind: Any = object  # of what is compiled, which nobody reads
    return SerializableAOTDispatchCompiler(kind, compiler)


def possible() -> bool:
    """Whether torch can be asked to keep what it traces: it is a version that is known, and its user wants caches."""
    if not torch.__version__.startswith(tuple(f"{v}." for v in VERSIONS)):
        return False
    if torchs.should_bundle_autograd_cache() or torchs.should_use_remote_autograd_cache() or config.strict_autograd_cache:
        return False
    return torchs.should_use_local_autograd_cache() and _installed()


def _installed() -> bool:
    """Makes torch ask; once in a process."""
    with _LOCK:
        cache: Any = torchs.AOTAutogradCache
        if hasattr(cache, "_lowc_asked"):
            return True
        try:
            old = torchs.autograd_cache_key, cache.try_load, cache.iterate_over_candidates, cache._write_to_local_cache
        except AttributeError as error:
            log.debug("torch's cache is another one: %s", error)
            return False
        key, load, candidates, write = old

        def autograd_cache_key(mod: Any, args: Any, aot_config: Any, *rest: Any, **named: Any) -> Any:
            lookup = _ASKING.get()
            return (lookup.key(mod, args, aot_config), []) if lookup else key(mod, args, aot_config, *rest, **named)

        def try_load(*args: Any, **named: Any) -> Any:
            found = load(*args, **named)
            if lookup := _ASKING.get():
                lookup.loaded((found[0] if isinstance(found, tuple) else found) is not None)
            return found

        def iterate_over_candidates(local: bool, remote_cache: Any, key: str) -> Any:
            return key.lookup.candidates() if isinstance(key, _Key) else candidates(local, remote_cache, key)

        def write_to_local_cache(key: str, content: bytes) -> None:
            key.lookup.put(content) if isinstance(key, _Key) else write(key, content)

        torchs.autograd_cache_key = autograd_cache_key
        cache.try_load = staticmethod(try_load)
        cache.iterate_over_candidates = staticmethod(iterate_over_candidates)
        # A backward pass is compiled, and kept, in a frame that Dynamo may be watching.
        cache._write_to_local_cache = staticmethod(hidden(write_to_local_cache))
        cache._lowc_asked = True
        return True
