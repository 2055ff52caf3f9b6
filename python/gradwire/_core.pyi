"""gradwire's C++ core. Use the typed package around it."""

from collections.abc import Sequence
import enum
from typing import Annotated, Any, Final, overload

import numpy
from numpy.typing import NDArray


class DecodeError(ValueError):
    pass

class TransportError(ConnectionError):
    pass

class MembershipChanged(TransportError):
    pass

class CallMismatch(TransportError, ValueError):
    pass

class TimeoutError(TimeoutError):
    pass

class Codec:
    """
    Floats to payloads and payloads to sums. Immutable; any thread may use it.
    Arrays are NumPy's, PyTorch's or any with DLPack, on the CPU and contiguous; they are used where
    they lie, without the GIL. Others are a ValueError.
    """

    @property
    def name(self) -> str: ...

    @property
    def lossy(self) -> bool:
        """
        True when encode() loses information, so that a residual is worth keeping.
        """

    @property
    def has_exact_reply(self) -> bool: ...

    def require_reply(self, reply: str) -> None:
        """
        Raises ValueError, naming the replies that there are, where servers cannot answer so.
        """

    @property
    def agrees_scales(self) -> bool: ...

    def max_encoded_size(self, elements: int) -> int:
        """Largest payload of that many elements, in bytes."""

    @overload
    def encode(self, grad: Annotated[NDArray, dict(writable=False)], *, residual: NDArray | None = None, scales: Annotated[NDArray, dict(writable=False)] | None = None, key: int = 0, rank: int = 0, step: int = 0, offset: int = 0) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """
        Encodes grad + residual (float32, shape (n,)), updates residual in place and returns the payload (uint8).
        scales, float32 (units, 2), is what decode_reply() brought in the round before. A codec that draws
        random numbers draws them by key (of the tensor), rank, step (the round) and offset (elements of the
        tensor before grad, whole codec units).
        """

    @overload
    def encode(self, grad: Annotated[NDArray, dict(writable=False)], *, residual: NDArray | None = None, scales: Annotated[NDArray, dict(writable=False)] | None = None, key: int = 0, rank: int = 0, step: int = 0, offset: int = 0, out: NDArray) -> int:
        """
        Writes the payload to out (at least max_encoded_size(n) bytes); returns its length.
        """

    def encode_flagged(self, grad: Annotated[NDArray, dict(writable=False)], *, residual: NDArray | None = None, scales: Annotated[NDArray, dict(writable=False)] | None = None, key: int = 0, rank: int = 0, step: int = 0, offset: int = 0) -> tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,))], bool]:
        """
        As encode(); returns the payload and a bool: a NaN or an infinity was met, or a value beyond the format (fp16:
        65504), of which the largest was sent and the rest kept.
        """

    @overload
    def decode_sum(self, payloads: Sequence[Annotated[NDArray, dict(writable=False)]], elements: int) -> NDArray[numpy.float32]:
        """
        Sums the payloads in rank order; returns float32 (elements,). Raises DecodeError.
        """

    @overload
    def decode_sum(self, payloads: Sequence[Annotated[NDArray, dict(writable=False)]], elements: int, *, out: NDArray) -> None:
        """The same, written to out."""

    @overload
    def decode(self, payload: Annotated[NDArray, dict(writable=False)], elements: int) -> NDArray[numpy.float32]:
        """Returns float32 (elements,). Raises DecodeError."""

    @overload
    def decode(self, payload: Annotated[NDArray, dict(writable=False)], elements: int, *, out: NDArray) -> None:
        """The same, written to out."""

    def encode_reply(self, payloads: Sequence[Annotated[NDArray, dict(writable=False)]], elements: int, *, reply: str, residual: NDArray | None = None) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """What a server answers to these payloads, in rank order (uint8)."""

    def decode_reply(self, payload: Annotated[NDArray, dict(writable=False)], ways: int, elements: int, *, reply: str) -> tuple:
        """
        Returns (sum float32 (elements,), next scales float32 (units, 2) or None).
        """

class ErrorFeedbackMetrics:
    """How one step of an ErrorFeedback went."""

    @property
    def residual_norm(self) -> float:
        """L2 norm of what is kept."""

    @property
    def given_norm(self) -> float:
        """L2 norm of what was to be sent plus the residual before."""

    @property
    def share_sent(self) -> float:
        """
        1 - (residual_norm / given_norm)^2; 1 where nothing was given, below 0 where sending made it worse.
        """

    @property
    def sent_elements(self) -> int:
        """Elements whose payload does not stand for 0."""

class ErrorFeedback:
    """
    Keeps what a codec left unsent of one run of a tensor, and adds it to the next step's gradient.

    One object a tensor, or partition of it; one thread at a time.

    Source: Karimireddy et al. 2019, 'Error feedback fixes SignSGD', algorithm 2; Lin et al. 2018,
    'Deep gradient compression', sections 3.2 and 3.3. The learning rate is applied after the sum.
    """

    def __init__(self, codec: Codec, elements: int, *, residual: str = 'fp32', momentum: float = 0.0, nesterov: bool = False, factor_masking: bool = False, can_roll_back: bool = False) -> None:
        """
        residual: 'fp32', or 'bf16' or 'int8' (blocks of 64), rounded every step: a half or a quarter of what is saved, and of the memory's traffic with 2bit and a fixed threshold in 'bf16'; others widen it into floats of their own.
        momentum, in [0, 1): sends u = momentum * u +
        gradient in place of the gradient; nesterov: gradient + momentum * u, as torch.optim.SGD; factor_masking: u
        becomes 0 where something was sent. can_roll_back keeps a copy of the state before the last step. Raises ValueError.
        """

    def encode(self, grad: Annotated[NDArray, dict(writable=False)], *, scales: Annotated[NDArray, dict(writable=False)] | None = None, key: int = 0, rank: int = 0, step: int = 0, offset: int = 0) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """
        Encodes one step's gradient (float32, shape (elements,)); the rest as Codec.encode(). Returns the payload (uint8).
        """

    def measure(self, payload: Annotated[NDArray, dict(writable=False)]) -> ErrorFeedbackMetrics:
        """
        Looks at the last step; payload is what it returned. Raises DecodeError.
        """

    def roll_back(self) -> None:
        """
        Undoes the last encode(). Raises RuntimeError where there is nothing to undo.
        """

    def reset(self) -> None:
        """Forgets residual and velocity."""

    def save(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """Returns the state as bytes (uint8), for load()."""

    def load(self, saved: Annotated[NDArray, dict(writable=False)]) -> None:
        """
        Takes over what save() returned. Raises DecodeError, and changes nothing, where it is of another kind, or holds what is not finite.
        """

    @property
    def residual(self) -> NDArray[numpy.float32]:
        """A copy of what is kept (float32, shape (elements,))."""

    @property
    def velocity(self) -> NDArray[numpy.float32] | None:
        """
        A copy of the momentum's u (float32, shape (elements,)); None without momentum.
        """

    @property
    def elements(self) -> int: ...

class EF21:
    """
    Compresses how one worker's gradient changes: sends codec(gradient - estimate), and adds what that
    stands for to the estimate. One object a tensor, or partition of it; one thread at a time.

    A round: encode(), the exchange of payloads, add() of their sum; then sum / workers is the mean.

    Source: Richtarik et al. 2021, 'EF21', algorithm 2; each worker keeps what the paper's master keeps.
    """

    def __init__(self, codec: Codec, elements: int) -> None:
        """
        elements: of the tensor, or partition. Raises ValueError: none; a codec that loses nothing; a codec that does not send 0 for 0
        (1bit with a fixed threshold), with which no estimate settles.
        """

    def encode(self, grad: Annotated[NDArray, dict(writable=False)], *, scales: Annotated[NDArray, dict(writable=False)] | None = None, key: int = 0, rank: int = 0, step: int = 0, offset: int = 0) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """
        Encodes one step's gradient (float32, shape (elements,)); the rest as Codec.encode(). Returns the payload (uint8).
        """

    def add(self, answer: Annotated[NDArray, dict(writable=False)]) -> None:
        """
        Takes in a round's answer: the sum of all workers' decoded payloads (float32, shape (elements,)).
        """

    def reset(self) -> None:
        """Forgets all, which every worker must do in the same round."""

    def save(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """Returns the state as bytes (uint8), for load()."""

    def load(self, saved: Annotated[NDArray, dict(writable=False)]) -> None:
        """
        Takes over what save() returned. Raises DecodeError, and changes nothing, where it is of another size, or holds what is not finite.
        """

    @property
    def estimate(self) -> NDArray[numpy.float32]:
        """
        A copy of what all take this worker's gradient for (float32, (elements,)).
        """

    @property
    def sum(self) -> NDArray[numpy.float32]:
        """A copy of the sum of all workers' estimates (float32, (elements,))."""

    @property
    def elements(self) -> int:
        """Of the tensor, or partition."""

def lossless_encode(codes: Annotated[NDArray, dict(writable=False)], elements: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
    """Codes of 2bit without most of their zeros (uint8). Raises ValueError."""

def lossless_decode(coded: Annotated[NDArray, dict(writable=False)], elements: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
    """What lossless_encode() was given (uint8). Raises DecodeError."""

def make_codec(spec: str) -> Codec:
    """
    Makes a codec from text such as '2bit:threshold=0.5,nonfinite=mxnet'. Raises ValueError.
    """

def canonical_spec(spec: str) -> str:
    """The same codec with every parameter written out."""

def codecs() -> list:
    """One dict per codec: name, summary, parameters, lossy, exact_reply."""

UNIT_ELEMENTS: int = 65536

def copy(to: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')], from_: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)]) -> None:
    """memcpy, the yardstick of the codec benchmark."""

class DeviceCodec:
    """
    A codec's twin on CUDA devices: the payloads and sums of Codec, bit for bit. Immutable; any thread may
    use it. A call enqueues its work on `stream` (a cudaStream_t as a number) and returns; arrays must stay
    until the stream has passed it. All lie on one device, contiguous, and begin at multiples of 8 bytes.
    report, int32 (2,), begins as zeros: its first number becomes 1 where Codec.encode_flagged() says True.
    scratch, uint8, has at least scratch_bytes(n); calls on other streams need others.
    """

    def scratch_bytes(self, elements: int) -> int: ...

    def sum_bytes(self, elements: int, ways: int) -> int:
        """Bytes that encode_sum() writes for so many payloads."""

    def encode(self, grad: Annotated[NDArray[numpy.float32], dict(order='C', device='cuda', writable=False)], *, residual: Annotated[NDArray[numpy.float32], dict(order='C', device='cuda')] | None = None, scales: Annotated[NDArray[numpy.float32], dict(order='C', device='cuda')] | None = None, key: int = 0, rank: int = 0, step: int = 0, out: Annotated[NDArray[numpy.uint8], dict(order='C', device='cuda')], report: Annotated[NDArray[numpy.int32], dict(shape=(2), order='C', device='cuda')], scratch: Annotated[NDArray[numpy.uint8], dict(order='C', device='cuda')], stream: int) -> int:
        """
        As Codec.encode() to out; returns the payload's length, which depends on no value.
        """

    def decode_sum(self, received: Sequence[Annotated[NDArray, dict(writable=False)]], payloads: Annotated[NDArray[numpy.uint8], dict(order='C', device='cuda', writable=False)], *, out: Annotated[NDArray[numpy.float32], dict(order='C', device='cuda')], report: Annotated[NDArray[numpy.int32], dict(shape=(2), order='C', device='cuda')], stream: int) -> None:
        """
        As Codec.decode_sum() to out. received: the payloads on the host, which are checked; payloads, uint8 (ranks, stride):
        the same on the device, stride a multiple of 8. Raises DecodeError.
        """

    def encode_sum(self, received: Sequence[Annotated[NDArray, dict(writable=False)]], payloads: Annotated[NDArray[numpy.uint8], dict(order='C', device='cuda', writable=False)], elements: int, *, out: Annotated[NDArray[numpy.uint8], dict(order='C', device='cuda')], report: Annotated[NDArray[numpy.int32], dict(shape=(2), order='C', device='cuda')], scratch: Annotated[NDArray[numpy.uint8], dict(order='C', device='cuda')], stream: int) -> int:
        """
        As Codec.encode_reply(reply='fp32') to out; returns the reply's length. The sum is its last elements floats.
        """

    def read_sum(self, received: Annotated[NDArray, dict(writable=False)], reply: Annotated[NDArray[numpy.uint8], dict(order='C', device='cuda', writable=False)], ways: int, *, out: Annotated[NDArray[numpy.float32], dict(order='C', device='cuda')], scales: Annotated[NDArray[numpy.float32], dict(order='C', device='cuda')], report: Annotated[NDArray[numpy.int32], dict(shape=(2), order='C', device='cuda')], stream: int) -> None:
        """
        As Codec.decode_reply(reply='fp32') to out, and the next round's scales to scales, float32 (units, 2). received: the
        reply on the host, of which what is before the floats is read. Raises DecodeError.
        """

def make_device_codec(spec: str) -> DeviceCodec:
    """
    The twin of make_codec(spec) on this machine's CUDA devices; None where that codec has none, or there is no device.
    Raises ValueError.
    """

class Ticket:
    """An operation in flight."""

    @property
    def done(self) -> bool: ...

    @property
    def nonfinite(self) -> bool:
        """
        Whether any rank met a NaN or infinity in what this is for; known once done.
        """

    def wait(self, seconds: float = 1000000000.0) -> bool:
        """
        Waits; returns False when seconds passed first. Raises the operation's error.
        """

class Engine:
    """
    A worker's end of the store. Made by connect_engine() or local_engine().
    """

    def collective_broadcast(self, values: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], dtype: str, root: int, agreed: str) -> None:
        """Writes root's bytes to everybody's. Collective."""

    def collective_all_reduce(self, values: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], dtype: str, op: str, agreed: str) -> None:
        """Combines all workers' arrays elementwise. Collective."""

    def collective_reduce_scatter(self, values: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], dtype: str, op: str, row_elements: int, agreed: str) -> None:
        """
        As collective_all_reduce, for this worker's near-equal share of the rows. Collective.
        """

    def collective_all_gather(self, block: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], dtype: str, agreed: str) -> tuple[list[int], Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C')]]:
        """
        Elements of every worker's block, and the blocks one after the other. Collective.
        """

    def collective_all_to_all(self, blocks: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]], dtype: str, agreed: str) -> tuple[list[int], Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C')]]:
        """
        Elements of what each worker had for this one, one after the other. Collective.
        """

    @property
    def has_rows(self) -> bool:
        """Whether there are tables of rows: not where a library sums."""

    def declare_rows(self, tables: Sequence[tuple[str, Sequence[int]]]) -> list[int]:
        """
        Agrees on new tables, (name, shape) each: the first dimension is rows. Collective.
        """

    def init_rows(self, tables: Sequence[tuple[int, Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)]]], root: int = 0) -> None:
        """
        Stores root's rows as the first values of tables, (table, ids, rows) each, whose other rows are zero; all in one exchange. Collective.
        """

    def set_row_compression(self, tables: Sequence[int], spec: str, reply: str) -> None:
        """Sets the codec of some tables apart from the others'. Collective."""

    def push_rows(self, table: int, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)], priority: int = 0) -> Ticket:
        """
        Adds rows, in any order, to this round's sum; has taken them when it returns. room_for_rows() is to be waited for first.
        """

    def room_for_rows(self, table: int) -> Ticket | None:
        """What a push to the table has to wait for; None: nothing."""

    def push_pull_rows(self, table: int, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)], priority: int = 0, program_step: int = 0) -> PulledRows:
        """
        Likewise, and asks for all rows of the round; where pushes are applied at once, for those given.
        """

    def pull_rows(self, table: int, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], priority: int = 0) -> PulledRows:
        """
        Asks for some rows as this worker's last round left them, or at once as they are now.
        """

    def rows_of(self, pulled: PulledRows) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.float32], dict(shape=(None,))]]:
        """
        Ids, int64 (n,) ascending, and rows, float32 (n * elements,), once pulled.ticket is done. Rows that are zero may be left out.
        """

    def row_residual(self, table: int) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.float32], dict(shape=(None,))]]:
        """
        A copy of what the table's codec has not sent yet, as rows_of() gives rows.
        """

    def server_row_residual(self, table: int) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.float32], dict(shape=(None,))]]:
        """
        A copy of what servers have not sent yet of the table's replies; a row may be there more than once. Between rounds of all workers.
        """

    def set_row_residual(self, table: int, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)]) -> None:
        """Replaces it."""

    def keep_row_rollback(self, keep: bool) -> None:
        """Keeps what roll_back_rows() needs."""

    def roll_back_rows(self, tables: Sequence[int]) -> None:
        """Puts residuals back to what they were before the tables' last rounds."""

    def residual(self, key: int) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
        """
        A copy of what the key's codec has not sent yet, float32 (elements,); (0,) where there is none.
        """

    def set_residual(self, key: int, values: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)]) -> None:
        """
        Replaces it. Raises ValueError where a value is not finite, but with nonfinite=mxnet.
        """

    def add_to_residual(self, key: int, values: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)]) -> None:
        """
        Adds to it what a round brought and no rank used; all ranks call it with the same values.
        """

    def keep_rollback(self, keep: bool) -> None:
        """
        Keeps, from the next round on, what roll_back() needs: a second copy of every residual.
        """

    def server_residual(self, key: int) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
        """
        A copy of what servers have not sent yet of the key's replies, float32 (elements,); (0,) where there is none. Between rounds of all workers.
        """

    def draw_residuals(self) -> None:
        """
        Takes what servers have not sent yet of their replies into the workers' residuals, which send it next. Collective, between steps; before the servers end.
        """

    def roll_back(self, keys: Sequence[int]) -> None:
        """
        Puts the residuals of keys back to what they were before their last round.
        """

    def discard_residuals(self, keys: Sequence[int]) -> None:
        """
        Discards the residuals of keys that will not be pushed again, on all ranks. No-op after close().
        """

    def save_checkpoint(self, folder: str, front_end: bytes) -> None:
        """Writes all that is kept from round to round. Collective."""

    def load_checkpoint(self, folder: str) -> str:
        """
        Goes on from a checkpoint. Returns the servers' optimizer, empty where there is none. Collective.
        """

    def save_optimizer_states(self, path: str, with_parameters: bool) -> None:
        """
        Writes what the servers' optimizer remembers of each weight. Of one rank alone.
        """

    def load_optimizer_states(self, path: str) -> str:
        """
        Puts it back. Returns the optimizer that it brought, empty where it is the one before. Collective.
        """

    def residual_norm(self) -> float | None:
        """
        The Euclidean norm of all residuals together; None while a round is in progress.
        """

    def share_sent(self) -> float | None:
        """
        Of |gradient + residual|^2, in the keys' last measured rounds; None without, or while a round is in progress.
        """

    def faults(self) -> dict:
        """Frames by what GRADWIRE_FAULTS has done to them; empty without it."""

    def unmet_kills(self) -> list[str]:
        """
        Kills of GRADWIRE_FAULTS that were to come to this process and have not, in words.
        """

    def counters(self) -> dict:
        """
        Bytes and frames at the socket since the start, all peers together; and bytes that have crossed between the host and its devices.
        """

    def pushed(self) -> tuple[int, int]:
        """Bytes that this worker has pushed: as float32, and encoded."""

    def ahead_bytes(self) -> int:
        """
        What push() has taken of gradients whose rounds cannot begin yet, at most push_ahead_bytes, and of rows whose rounds are not known to be over.
        """

    def mirrored_bytes(self) -> int:
        """
        Payload bytes that servers have passed on to their mirrors. Asks the servers.
        """

    def replaced_servers(self) -> dict[int, int]:
        """Servers that have died, and who serves in their place."""

    def waited_for(self) -> list[int]:
        """
        How often each worker's push was the last that a round needed, as the servers have counted.
        """

    def stage_seconds(self) -> dict:
        """
        Seconds that each stage of all partitions has taken here while they were traced.
        """

    def staleness(self) -> dict[int, int]:
        """
        Where pushes are applied at once: how many parts this worker has pushed, by how many pushes of others went into their weight since this worker was given it.
        """

    def codec_seconds(self) -> float: ...

    def take_notices(self) -> list[str]: ...

    def take_messages(self) -> list[str]:
        """
        Lines about messages sent and heard since the last call, where log_messages was given.
        """

    def start_timeline(self) -> None:
        """Notes from now on what happens to every partition here."""

    def stop_timeline(self) -> None:
        """Notes no more, but how long what is on the wire takes."""

    def read_clocks(self, seconds: float) -> None:
        """
        Compares the servers' clocks with this one's, in at most so many seconds.
        """

    def write_timeline(self, folder: str, store: str) -> str | None:
        """
        Writes what was noted to folder and forgets it. Returns the file's path; None in a forked process. Also after close().
        """

    @property
    def rank(self) -> int: ...

    @property
    def num_workers(self) -> int: ...

    @property
    def num_servers(self) -> int: ...

    @property
    def generation(self) -> int:
        """
        How often the job has met: 1, and more after each change of its members.
        """

    @property
    def newcomers(self) -> int:
        """
        Workers that wait to be taken into the job, as last heard; ranks may hear it at different times.
        """

    def regroup(self, why: str, stays: bool) -> None:
        """
        Has all ranks hear of a change of membership, and join again; with stays=False all others.
        """

    def barrier(self) -> None: ...

    def join(self) -> int:
        """
        Says that this worker has run out of data: the others' rounds go on without it. Returns when all have joined, with the rank that joined last.
        """

    def all_gather(self, name: str, blob: bytes) -> list:
        """Every worker's blob in rank order. Collective."""

    def change_endless(self, by: int) -> None:
        """
        With 1: what this thread waits for from now on, however often it looks, it waits for until it has come; with -1 no longer. So workers that wait for one another are found.
        """

    def let_go_of_arrays(self) -> None:
        """
        Lets go of the arrays of operations that are done, which otherwise the next operation does.
        """

    def await_rounds(self) -> None:
        """Waits until all rounds that this worker has begun are over."""

    def refuse(self, name: str, text: str) -> None:
        """
        Raises ValueError with this text on all workers, which begin the call that is wrong here with the exchange of that name. No-op in a job whose members have changed.
        """

    def agree(self, what: str, text: str) -> None:
        """
        Raises ValueError where a worker gives other lines, the same on all. Collective.
        """

    def set_compression(self, spec: str, reply: str, weights: str = 'fp32') -> None:
        """Collective. Raises ValueError when ranks differ."""

    def set_key_compression(self, keys: Sequence[int], spec: str, reply: str) -> None:
        """
        Sets the codec of some keys apart from the others', before they are bound. Collective.
        """

    def declare(self, keys: Sequence[tuple[str, Sequence[int], str]]) -> list[int]:
        """
        Agrees on new keys (name, shape, dtype) and returns their ids. Collective.
        """

    def init(self, keys: Sequence[int], values: Sequence[Annotated[NDArray, dict(order='C', device='cpu', writable=False)]], root: int = 0) -> None:
        """
        Stores root's values as the keys' first, all in one exchange. Of a key of float64 they may be float64; of another that is a ValueError. Collective.
        """

    def set_optimizer(self, text: str) -> None: ...

    @overload
    def push(self, key: int, grad: Annotated[NDArray, dict(order='C', device='cpu', writable=False)], priority: int = 0) -> tuple[Ticket, Ticket]:
        """
        Adds grad, of float32, float16 or bfloat16, to this round's sum. Of a key of float64 it may be float64: sums are of float64 with codec none; others work in float32. Returns two tickets: grad was taken, which is to be waited for; the round is over.
        """

    @overload
    def push(self, key: int, grad: Annotated[NDArray, dict(order='C', device='cuda', writable=False)], priority: int = 0, *, stream: int) -> tuple[Ticket, Ticket]:
        """
        The same of a gradient on a CUDA device, not of float64, which `stream` (a cudaStream_t as a number) may still be writing.
        """

    @overload
    def pull(self, key: int, out: Annotated[NDArray, dict(order='C', device='cpu')], priority: int = 0) -> Ticket: ...

    @overload
    def pull(self, key: int, out: Annotated[NDArray, dict(order='C', device='cuda')], priority: int = 0, *, stream: int) -> Ticket:
        """The same to a CUDA device, behind what `stream` has been given there."""

    @overload
    def push_pull(self, key: int, grad: Annotated[NDArray, dict(order='C', device='cpu', writable=False)], out: Annotated[NDArray, dict(order='C', device='cpu')], priority: int = 0, scale: float = 1.0, program_step: int = 0) -> Ticket: ...

    @overload
    def push_pull(self, key: int, grad: Annotated[NDArray, dict(order='C', device='cuda', writable=False)], out: Annotated[NDArray, dict(order='C', device='cuda')], priority: int = 0, scale: float = 1.0, program_step: int = 0, *, stream: int) -> Ticket:
        """Both on one CUDA device; `stream` as in push() and pull()."""

    @overload
    def bind_slots(self, keys: Sequence[int], arrays: Sequence[Annotated[NDArray, dict(order='C', device='cpu')]], priorities: Sequence[int] = [], set: int = 0, groups: Sequence[int] = []) -> None:
        """
        Binds slot i of a set to keys[i] and to arrays[i], which is input and output of every step. Empty priorities: -i. A collective.
        """

    @overload
    def bind_slots(self, keys: Sequence[int], arrays: Sequence[Annotated[NDArray, dict(order='C', device='cuda')]], priorities: Sequence[int] = [], set: int = 0, groups: Sequence[int] = []) -> None:
        """The same of arrays on one CUDA device."""

    def set_slot_scale(self, scale: float, set: int = 0) -> None: ...

    def set_program_step(self, program_step: int, set: int = 0) -> None:
        """
        Says which step of the program the slots' next step is of: workers that differ fail. 0: not compared.
        """

    def mark_ready(self, slot: int, stream: int = 0, set: int = 0) -> None:
        """
        Says that the slot's gradient is complete; on a CUDA device, once `stream` has done what it was given.
        """

    def unmarked(self, set: int = 0) -> list[int]:
        """Slots not marked in this step."""

    def slot_sums(self, set: int = 0) -> list[tuple[Ticket, list[int]]]:
        """
        Of the step in progress, in which every slot is marked: tickets, each with the slots whose sums are there when it is done. drain() still ends the step.
        """

    def drain(self, seconds: float = 1000000000.0, set: int = 0) -> bool:
        """
        Waits until every slot of a set holds its sum. Returns False when seconds passed first.
        """

    def close(self, error: str = '') -> None:
        """
        Says goodbye and ends the threads. Idempotent. error: what ends this worker, for the others; empty: it has come to its end.
        """

    def outlast(self, seconds: float) -> bool:
        """
        After close(): waits until all have left the job, if this process serves them: its rendezvous, a server. Returns False when seconds passed first.
        """

    @property
    def serves_rendezvous(self) -> bool:
        """Whether workers join the job at this process."""

    def retire(self) -> None:
        """
        After close(): ends what a server here does for other workers, for a process that ends by an error.
        """

class PulledRows:
    """Rows on their way."""

    @property
    def ticket(self) -> Ticket: ...

class Faults:
    """What disturbs a process's frames, in all generations of its job."""

    def __init__(self, spec: str, checksum: str) -> None: ...

def connect_engine(**settings: Any) -> Engine:
    """Joins a job as a worker. Keywords: gradwire.settings."""

class Scheduler:
    """
    The scheduler of a job: rendezvous, liveness, exchanges. It listens at once.
    """

    def __init__(self, **settings: Any) -> None:
        """Keywords: gradwire.settings."""

    @property
    def endpoint(self) -> str:
        """Where others reach it: tcp://host:port."""

    @property
    def address(self) -> str:
        """The numeric address on which it listens; '*': on all interfaces."""

    def serve(self) -> None:
        """Serves the job to its end."""

def connect_peers(serves: Scheduler | None, **settings: Any) -> Engine:
    """
    Joins a job whose every worker sums a share itself. serves: the job's scheduler, if this process serves it; it then belongs to the engine. Keywords: gradwire.settings.
    """

def connect_mpi(library: str, **settings: Any) -> Engine:
    """
    As connect_peers, over MPI: every rank of MPI_COMM_WORLD is a worker. library: libgradwire_mpi.so.
    """

def connect_mpi_native(library: str, **settings: Any) -> Engine:
    """
    As connect_mpi, and MPI sums: every rank must push the same keys in the same order.
    """

def connect_nccl(serves: Scheduler | None, library: str, device: int | None, share_gpu: bool, **settings: Any) -> Engine:
    """
    NCCL sums: every rank must push the same keys in the same order. library: libnccl.so.2. device: number of the GPU; None: the rank modulo the number of GPUs. share_gpu: whether other ranks may use that GPU; call gradwire.stores.nccl.share_gpus() first.
    """

class InprocNetwork:
    """Peers inside this process: every rank is a thread of its own."""

    def __init__(self, workers: int) -> None: ...

    def connect(self, rank: int, **settings: Any) -> Engine:
        """Joins as rank, on a thread of its own: returns when all have joined."""

def local_engine(**settings: Any) -> Engine:
    """A store inside this process, of one worker."""

def run_server(**settings: Any) -> None:
    """Serves one job to its end in this process."""

def build_info() -> dict:
    """
    What the core was built with and runs on: version of ZeroMQ and whether it can encrypt, instruction set of the codecs, number of CUDA devices and, where there is none, the reason; why NCCL cannot be used by this build, if so.
    """

def make_job_key() -> str:
    """Makes the secret of an encrypted job: 128 hexadecimal digits."""

def resolve(host: str) -> str:
    """
    The numeric address of a host as this machine finds it, one that others can reach if it has one. Raises TransportError.
    """

def address_towards(peer_address: str) -> str:
    """
    The address of this machine from which packets to a numeric address leave. Raises TransportError.
    """

def address_of_interface(name: str, peer_address: str) -> str:
    """
    The address of a network interface, of the peer's family where there is a choice. Raises ValueError, listing the interfaces that there are.
    """

def read_front_end(folder: str, rank: int) -> tuple[int, int, bytes]:
    """
    What a checkpoint holds of a worker's own: the number of workers, whose it is, and the bytes.
    """

def describe_mpi(library: str) -> dict:
    """
    Version and thread level of MPI, which it initialises and finalises: for a process of its own.
    """

def nccl_version(library: str) -> str:
    """
    Version of the NCCL there, which needs no GPU. Raises TransportError with the loader's reason.
    """

def canonical_weights(text: str) -> str:
    """
    How servers send weights, 'fp16' or 'delta:int8', with every parameter written out. Raises ValueError.
    """

def check_faults(text: str, workers: int | None, servers: int) -> None:
    """
    Raises ValueError unless text says what a job is to be disturbed by (GRADWIRE_FAULTS), and nodes that it has; workers: None where others may come.
    """

class Topology(enum.Enum):
    """Where a round is summed."""

    SERVERS_APART = 0

    SERVERS_BESIDE = 1

    RING = 2

class SendOrder(enum.Enum):
    """In what order parts go."""

    PRIORITY = 0

    FIFO = 1

class NextForward(enum.Enum):
    """What the next step's forward waits for."""

    PER_LAYER = 0

    DRAINED = 1

class SimulatedLayer:
    def __init__(self, elements: int, forward_seconds: float, backward_seconds: float) -> None: ...

    @property
    def elements(self) -> int: ...

    @property
    def forward_seconds(self) -> float: ...

    @property
    def backward_seconds(self) -> float: ...

class LayerTimes:
    """Seconds from the start of the step's backward."""

    @property
    def ready_seconds(self) -> float: ...

    @property
    def arrived_seconds(self) -> float: ...

    @property
    def forward_seconds(self) -> float: ...

class Simulated:
    @property
    def step_seconds(self) -> float: ...

    @property
    def compute_seconds(self) -> float: ...

    @property
    def sent_bytes(self) -> float: ...

    @property
    def received_bytes(self) -> float: ...

    @property
    def busiest_link(self) -> float: ...

    @property
    def layers(self) -> list[LayerTimes]: ...

    @property
    def events(self) -> int: ...

class PlanLimits:
    def __init__(self, partition_elements: int, unit_elements: int, least_pieces: int, shortest_piece_elements: int, shard_bound_elements: int, fusion_bytes: int) -> None: ...

    LEAST_PIECES: Final[int] = ...
    """(arg: object, /) -> int"""

class PlannedKey:
    """One or several layers that travel under one name."""

    @property
    def layers(self) -> list[int]: ...

    @property
    def turns(self) -> list[int]: ...

class PlannedPart:
    """What one server owns of a key, or a piece of that."""

    @property
    def key(self) -> int: ...

    @property
    def server(self) -> int: ...

    @property
    def elements(self) -> int: ...

class StepPlan:
    @property
    def keys(self) -> list[PlannedKey]: ...

    @property
    def parts(self) -> list[PlannedPart]: ...

def plan_step(layer_elements: Sequence[int], servers: int, first: int, limits: PlanLimits) -> StepPlan:
    """
    What travels in a step: layers, front layer first, become keys, keys parts with a home. first: the server whose parts are encoded first.
    """

class NetworkModel:
    def __init__(self, topology: Topology, workers: int, servers: int, bytes_per_second: float, latency_seconds: float, message_seconds: float, wakeup_seconds: float) -> None: ...

class CodecCosts:
    def __init__(self, push_bytes: float, reply_bytes: float, encode_seconds: float, decode_seconds: float, sum_seconds: float) -> None: ...

    @property
    def push_bytes(self) -> float: ...

class CoreModel:
    """The machine that a worker shares with others and with servers."""

    def __init__(self, cores: float, compute_threads: float, workers: float, servers_share: float, byte_seconds: float) -> None: ...

class SimulationSetup:
    def __init__(self, layers: Sequence[SimulatedLayer], network: NetworkModel, codec: CodecCosts, limits: PlanLimits, message_bytes: int, credit_bytes: int, order: SendOrder, next_forward: NextForward, codec_threads: int, server_threads: int, steps: int, machine: CoreModel) -> None: ...

def shortest_piece(unit_elements: int, unit_payload_bytes: int) -> int:
    """
    Least elements of a piece that is worth a frame, by the payload of a codec unit in bytes.
    """

def simulate(setup: SimulationSetup) -> Simulated:
    """
    Simulates steps of training: what each takes, and when each layer's sum arrives.
    """

def least_step_seconds(setup: SimulationSetup) -> float:
    """Seconds that no schedule of these layers on this network can beat."""
