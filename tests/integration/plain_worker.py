"""One worker of a 2bit job in plain Python: sockets, zlib and NumPy; nothing of gradwire's, no ZeroMQ.

It is written from what transport/PROTOCOL.md, compress/FORMAT.md and kvstore/wire/PROTOCOL.md say of the wire: if it
works, they are enough to write a node in any language. It does what a worker must; it neither retries nor probes.

    plain_worker.py tcp://127.0.0.1:9091 RANK WORKERS SERVERS
"""

from __future__ import annotations

import json
import queue
import socket
import struct
import sys
import threading
import time
import zlib
from collections.abc import Iterable

import numpy as np

HELLO, ROSTER, HEARTBEAT, EXCHANGE, RESULT, GOODBYE = range(1, 7)
INIT, PUSH, REPLY, ACK = 32, 33, 34, 41
TWO_BIT, EXACT = 3, 1  # codec and reply on the wire
PARTITION, SHARD_BOUND, THRESHOLD = 65536, 1_000_000, np.float32(0.5)
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = bytes.fromhex("041C 05 5245414459 0B 536F636B65742D54797065 00000006 4445414C4552")

Message = list[tuple[dict[str, int], bytes]]  # header and payload of each frame
Array = np.ndarray  # of float32


class Connection:
    """One ZMTP 3.0 connection, DEALER's side. A thread reads it into `messages`."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self.socket = socket.create_connection((host.strip("[]"), int(port)))
        self.reader, self.lock = self.socket.makefile("rb"), threading.Lock()
        self.messages: queue.Queue[Message] = queue.Queue()
        self.socket.sendall(GREETING + READY)
        self.reader.read(64)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        frames: list[bytes] = []
        while flags := self.reader.read(1):
            size = int.from_bytes(self.reader.read(8 if flags[0] & 2 else 1), "big")
            body = self.reader.read(size)
            if not flags[0] & 4:  # no command, as READY is
                frames.append(body)
            if frames and not flags[0] & 1:  # the last frame of a message
                self.messages.put([(read_header(h, p), p) for h, p in zip(*[iter(frames)] * 2, strict=True)])
                frames = []

    def send(self, header: bytes, payload: bytes) -> None:
        with self.lock:
            for more, body in ((1, header), (0, payload)):
                self.socket.sendall(bytes([more | 2]) + len(body).to_bytes(8, "big") + body)

    def receive(self, kind: int) -> Message:
        while (message := self.messages.get(timeout=300))[0][0]["kind"] == HEARTBEAT:
            pass
        assert message[0][0]["kind"] == kind, message
        return message


HEADER = struct.Struct("<IBBBBBBHIQIiQQQQ4IQII16x")
FIELDS = (
    *("magic", "version", "kind", "codec", "dtype", "reply", "content", "reserved", "flags", "epoch"),
    *("sender", "priority", "key", "step", "offset", "count", "p0", "p1", "p2", "p3"),
    *("bytes", "payload_crc", "crc"),
)


def write_header(payload: bytes, **given: int) -> bytes:
    fixed = {"magic": 0x31575247, "version": 1, "bytes": len(payload), "payload_crc": zlib.crc32(payload)}
    values = dict.fromkeys(FIELDS, 0) | fixed | given
    values["crc"] = zlib.crc32(HEADER.pack(*values.values()))
    return HEADER.pack(*values.values())


def read_header(header: bytes, payload: bytes) -> dict[str, int]:
    values = dict(zip(FIELDS, HEADER.unpack(header), strict=True))
    own = {"bytes": len(payload), "payload_crc": 0 if values["flags"] & 2 else zlib.crc32(payload), "crc": 0}
    assert zlib.crc32(HEADER.pack(*(values | own).values())) == values["crc"]
    return values


def encode(grad: Array, residual: Array) -> bytes:
    """2bit: 11 is +T, 10 is -T, the first element in the most significant bits, padded to 4 bytes."""
    residual += grad
    codes = np.where(residual >= THRESHOLD, 3, np.where(residual <= -THRESHOLD, 2, 0)).astype(np.uint8)
    residual -= np.where(codes == 3, THRESHOLD, np.where(codes == 2, -THRESHOLD, np.float32(0)))
    padded = np.zeros((-(-len(codes) // 16) * 4, 4), np.uint8)
    padded.ravel()[: len(codes)] = codes
    return (padded << np.array([6, 4, 2, 0], np.uint8)).sum(axis=1, dtype=np.uint8).tobytes()


def decode_exact(payload: bytes, count: int, workers: int) -> Array:
    """Groups of 64 elements; word j of a group holds bit j of every element's sum of codes + workers."""
    words = np.frombuffer(payload, np.uint8).reshape(-1, (2 * workers).bit_length(), 8)
    bits = np.unpackbits(words, axis=2, bitorder="little").astype(np.int32)
    counts = (bits << np.arange(words.shape[1])[:, None]).sum(axis=1).ravel()[:count]
    return (counts - workers).astype(np.float32) * THRESHOLD


class PlainWorker:
    def __init__(self, scheduler: str, rank: int, workers: int, servers: int) -> None:
        self.rank, self.workers, self.epoch, self.exchanges, self.load = rank, workers, 0, 0, [0] * servers
        self.homes: dict[str, tuple[int, int]] = {}  # wire key and server
        self.residuals, self.steps = dict[str, Array](), dict[str, int]()
        self.control = Connection(scheduler)
        hello = f"role=worker\nrank={rank}\nworkers={workers}\nservers={servers}\nendpoint=\nversion=1\n"
        self.send(self.control, f"{hello}host=plain\npid=1\n".encode(), kind=HELLO, sender=3 << 24 | 0xFFFFFF)
        roster = self.control.receive(ROSTER)[0][1].decode().split()
        self.epoch = next(int(line[6:]) for line in roster if line.startswith("epoch="))
        threading.Thread(target=self.beat, daemon=True).start()
        self.streams = [Connection(line[7:]) for line in roster if line.startswith("server=")]
        for stream in self.streams:
            self.send(stream, b"stream=0\nstreams=1\n", kind=HELLO)
            stream.receive(HELLO)
        self.exchange("settings", f"partition_elements={PARTITION}\nshard_bound_elements={SHARD_BOUND}\n")
        self.exchange("compression", f"compression=2bit:threshold=0.5,nonfinite=skip\nreply={EXACT}\n")

    def send(self, connection: Connection, payload: bytes = b"", **fields: int) -> None:
        own = {"sender": 3 << 24 | self.rank, "epoch": self.epoch}
        connection.send(write_header(payload, **(own | fields)), payload)

    def beat(self) -> None:
        while True:
            self.send(self.control, kind=HEARTBEAT)
            time.sleep(0.5)

    def exchange(self, name: str, blob: str) -> None:
        """Gives a blob and checks that every rank gave the same."""
        self.send(self.control, name.encode() + b"\0" + blob.encode(), kind=EXCHANGE, key=self.exchanges)
        header, blobs = self.control.receive(RESULT)[0]
        assert (header["key"], header["step"]) == (self.exchanges, 0)
        assert blobs == self.workers * (struct.pack("<Q", len(blob)) + blob.encode()), blobs
        self.exchanges += 1

    def init(self, values: dict[str, Array]) -> None:
        lines = sorted(f"{k}\tfloat32\t{','.join(map(str, v.shape))}\n".encode() for k, v in values.items())
        self.exchange("declare", b"".join(lines).decode())
        for wire_key, line in enumerate(lines, start=len(self.homes)):
            key = line.split(b"\t")[0].decode()
            server = self.load.index(min(self.load))  # all are below the shard bound, so each goes whole
            self.load[server] += 4 * values[key].size
            self.homes[key], self.steps[key] = (wire_key, server), 0
            self.residuals[key] = np.zeros(values[key].size, np.float32)
        for key, value in values.items():
            if self.rank == 0:
                self.ask(key, INIT, ACK, (value.ravel()[part].tobytes() for part in self.parts(key)))
        self.exchange("init", "")

    def parts(self, key: str) -> list[slice]:
        size = self.residuals[key].size
        return [slice(begin, min(begin + PARTITION, size)) for begin in range(0, size, PARTITION)]

    def ask(self, key: str, kind: int, answer: int, payloads: Iterable[bytes], **fields: int) -> list[bytes]:
        """Sends one request per partition of a key; returns the answers' payloads in the same order."""
        (wire_key, server), parts, answers = self.homes[key], self.parts(key), dict[int, bytes]()
        for part, payload in zip(parts, payloads, strict=True):
            fields |= {"kind": kind, "key": wire_key, "offset": part.start, "count": part.stop - part.start}
            self.send(self.streams[server], payload, **fields)
        while len(answers) < len(parts):
            for header, body in self.streams[server].receive(answer):
                assert header["key"] == wire_key
                answers[header["offset"]] = body
        return [answers[part.start] for part in parts]

    def pushpull(self, key: str, grad: Array) -> Array:
        flat, residual, total = grad.ravel(), self.residuals[key], np.empty(grad.size, np.float32)
        payloads = (encode(flat[part], residual[part]) for part in self.parts(key))
        codec = {"codec": TWO_BIT, "reply": EXACT, "p0": int(THRESHOLD.view(np.uint32))}
        answers = self.ask(key, PUSH, REPLY, payloads, step=self.steps[key], **codec)
        for part, body in zip(self.parts(key), answers, strict=True):
            total[part] = decode_exact(body, part.stop - part.start, self.workers)
        self.steps[key] += 1
        return total.reshape(grad.shape)

    def barrier(self) -> None:
        self.exchange("barrier", "")

    def close(self) -> None:
        for connection in [*self.streams, self.control]:
            self.send(connection, kind=GOODBYE)
            while connection.receive(GOODBYE)[0][0]["key"] != 1:
                pass


if __name__ == "__main__":
    from linear_model import train  # beside this file

    worker = PlainWorker(sys.argv[1], *map(int, sys.argv[2:]))
    print(json.dumps(train(worker, worker.rank)))
    worker.close()
