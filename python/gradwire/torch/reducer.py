"""GradientReducer: sends every gradient the moment autograd has it, and waits for the means when backward() ends.

step() exchanges what no backward() has brought: gradients that are set by hand, or a batch that reaches no parameter.

Each parameter has a slot: a run of the one flat buffer of its dtype, which the engine reads and writes in place. It
lies where the parameters do, if that is one CUDA device, else on the CPU. Slots of float64 parameters are float64, on
the CPU; those of 16 bits are float32 where something is computed with the gradients before they are sent; complex
numbers are pairs of real ones. Where a parameter is of its slot's dtype and device, `p.grad` is the slot's memory;
others are converted on the way in and out.

A sparse gradient, as of nn.Embedding(sparse=True), has no slot but travels as rows. Which parameters have one only
their first gradients tell, so in the first step they are summed as dense ones, and then all ranks agree
(row_agreement.py).

Threading: hooks run on autograd's thread, one at a time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gradwire.torch.backward_pass import BackwardPass
from gradwire.torch.compiled_autograd import require_eager
from gradwire.torch.exchange import Exchange
from gradwire.torch.exchange_options import ExchangeOptions
from gradwire.torch.gradient_hooks import GradientHooks
from gradwire.torch.gradient_memory import GradientMemory
from gradwire.torch.gradient_sender import GradientSender
from gradwire.torch.live_parameters import LiveParameters, Named
from gradwire.torch.mean_receiver import MeanReceiver
from gradwire.torch.overlapping.overlap import OverlappedSums
from gradwire.torch.row_agreement import RowAgreement
from gradwire.torch.sparse_gradients import all_finite

if TYPE_CHECKING:
    from gradwire.kv import KVStore
    from gradwire.torch.momentum import WorkerMomentum

_LAST_STEP = 2**32 - 1  # then steps are counted anew
_GROUPS, _UNSEEN = "groups", "without a gradient"  # in checkpoints


class GradientReducer:
    """Hooks the parameters of one model to one store's engine.

    Attributes:
        sync: False while gradients stay local.
        exchange: what carries them.
        overlap: sums that are left on their way at the end of backward(); None: it waits for them.
    """

    def __init__(
        self,
        store: KVStore,
        named: Named,
        *,
        passes: int,
        options: ExchangeOptions,
        momentum: WorkerMomentum | None,
        overlaps: bool = False,
    ) -> None:
        """Declares the parameters (a collective) and installs the hooks.

        Args:
            store: whose engine sums; a set of its slots is taken.
            named: parameters in order of the forward pass; the first is the most urgent. Frozen ones are not sent
                while they require no gradient, and keep what they have not sent yet.
            passes: calls of backward() that are accumulated before gradients are sent.
            options: codecs, and what to do in a step in which any rank met a NaN or an infinity.
            momentum: what to send in place of the gradient, or None.
            overlaps: backward() does not wait for sums (overlap_step).

        Raises:
            ValueError: a rank declares other names, shapes or another order; every rank gets the same text.
        """
        self.sync = True
        self.exchange = Exchange(store, options)
        self.exchange.program_step = 1
        self._options = options
        self._passes = passes
        self._passes_done = 0
        self._exchanged = False  # in this step, and gradients have not been cleared since
        self._is_cleared = False  # gradients, since the last step
        self._gave_nothing = False  # that exchange: means that nobody is to take
        self._awaits_sums = False
        self._was_interrupted = False  # while it awaited sums
        self._is_untaken = False  # what came of those: the step is still to be taken
        self._momentum = momentum
        self._memory = GradientMemory()
        self.overlap: OverlappedSums | None = None
        if overlaps:
            self.overlap = OverlappedSums(
                store, self.exchange, self._memory, options=options, momentum=momentum
            )
        self._hooks = GradientHooks(self)
        self._rows = RowAgreement(self.exchange, sends_rows=options.sparse_gradients == "rows")
        self._live = LiveParameters(
            self.exchange,
            self._memory,
            self._hooks,
            self._rows,
            known_sparse=options.sparse_parameters,
            keeps_halves=options.keeps_halves and momentum is None,  # momentum is kept in float32
        )
        self._sender = GradientSender(
            self.exchange,
            self._memory,
            self._rows,
            momentum,
            warns_of_sparse=options.sparse_gradients == "warn",
        )
        self._means = MeanReceiver(
            self.exchange,
            self._memory,
            self._live,
            self._rows,
            self._sender,
            options=options,
            momentum=momentum,
        )
        self._backward = BackwardPass(self, store)
        self._warned: set[str] = set()
        self._failed = False
        try:
            self.add(named)
        except BaseException:  # ranks that differ: others may be made
            self._hooks.remove()
            self.exchange.close()
            raise

    def add(self, named: Named) -> None:
        """Takes more parameters in, behind the others. A collective, between steps."""
        self._await_overlapped()
        self._live.add(named)
        self._sender.begin()

    def add_later(self, named: Named) -> None:
        """Takes more parameters in with the end of the next exchange, or before the next step."""
        self._live.add_later(named)

    def _choose_live(self, takes_part: Callable[[int], bool]) -> None:
        """Leaves out of steps what was frozen before this one, and takes in again what no longer is. A collective where
        there is any.
        """
        begun = set(self._live.indices if self._passes_done > 0 else ())
        self._live.choose(lambda index: index in begun or takes_part(index))

    def _requires_gradient(self, index: int) -> bool:
        return self._memory.parameters[index].requires_grad

    def close(self) -> None:
        """Takes the hooks off; gradients then stay local."""
        try:
            if self.overlap is not None:
                self.overlap.finish_at_close()
        finally:
            self._hooks.remove()
            self.exchange.close()

    def _await_overlapped(self) -> None:
        """Waits for the sums that are still on their way, if there are any."""
        if self.overlap is not None and self.overlap.has_some:
            self.overlap.synchronize()

    # -- during backward() -----------------------------------------------------------------------------

    def on_gradient(self, index: int) -> None:
        """Takes what autograd has just accumulated in a parameter's grad."""
        if not self.sync:
            if self.overlap is not None:
                self.overlap.await_means()  # what stays local adds to them
            return
        self._backward.enter()
        is_final = self._hooks.put_last(index)  # else other hooks of the parameter are still to run
        if self._memory.parameters[index].grad is None:
            self._warn_once(
                f"a hook on {self._memory.names[index]!r} has taken its gradient away in backward(). What the hook did "
                "with it was this worker's own: if it has stepped on it, the workers' weights differ. Step on the "
                "means, after backward()"
            )
        if is_final and self._passes_done + 1 == self._passes:
            self._sender.send(index)
            self._memory.note_taken(index)

    def on_backward_begin(self) -> None:
        """Runs before the first gradient of a backward() is taken.

        Raises:
            RuntimeError: workers send momentum, and have for the step that is not taken yet; compiled autograd runs
                the backward(). On all ranks.
        """
        self._await_overlapped()  # of parameters that the forward pass did not use
        require_eager("gradwire.torch: DistributedOptimizer")
        self.settle()
        self._tell_of_untaken()
        if self._momentum is not None:
            self._momentum.require_level()
        if not self._is_cleared:  # else that has restored them
            self._hooks.restore()
        self._choose_live(self._requires_gradient)

    # -- after it --------------------------------------------------------------------------------------

    def on_backward_end(self) -> None:
        """Runs when a backward() has computed all its gradients."""
        self._passes_done += 1
        if self._passes_done == self._passes:
            self._warn_of_late_changes()
            self._send_rest()

    def on_all_sent(self) -> None:
        """Follows it, once all optimizers at the store have sent what they have: waits for the means."""
        if self._awaits_sums:
            self._awaits_sums = False
            self._end_exchange()

    def _end_exchange(self) -> None:
        """Has the means be in p.grad, or come there. A Ctrl-C leaves the rest to settle()."""
        try:
            self._end_step()
        except KeyboardInterrupt:
            if self.overlap is None:
                self._was_interrupted = True
            else:  # what is on its way stays so, until somebody waits for it
                self._exchanged, self._gave_nothing = self.overlap.has_some, False
            raise
        self._exchanged, self._gave_nothing = True, False

    def _warn_of_late_changes(self) -> None:
        """Warns where p.grad was written after the parameter's hooks had run: by a hook on autograd's node, or on
        another parameter. What was sent may lack that.
        """
        changed = [
            index
            for index in self._live.indices
            if self._sender.is_sent(index) and not self._memory.is_as_taken(index)
        ]
        if changed:
            self._warn_once(
                f"the gradient of {self._memory.names[changed[0]]!r} was changed during backward() after it had been "
                "sent, so the workers' mean may lack that change; change a gradient in a hook of its own parameter "
                "(register_post_accumulate_grad_hook), or after backward()"
            )

    def _send_rest(self) -> None:
        """Sends what is left of a step's last pass."""
        self._passes_done = 0
        self._sender.send_rest(self._live.indices)
        self._awaits_sums = True

    def _end_step(self) -> None:
        """Waits for the means of all that was sent, or leaves them on their way."""
        if self.overlap is not None:
            self._means.leave_to(self.overlap)
        else:
            self._means.receive()

    # -- the step --------------------------------------------------------------------------------------

    def flush(self) -> bool:
        """Exchanges what this step's calls of backward() have not: all, where none has brought a gradient. A
        collective, but in no_sync(). Returns whether there was something.

        Raises:
            RuntimeError: a GradScaler has looked at those gradients, and each rank's has found something of its own; or
                with momentum, p.grad is what the last step has left there.
        """
        if not self.sync:
            return False
        with torch.inference_mode(False), torch.no_grad():
            is_complete = self._is_complete()
            if not is_complete:
                self._require_no_scaler()
                self._begin_without_backward()
                self._send_rest()
                self.on_all_sent()
            self._take_in_late()
        return not is_complete

    def _is_complete(self) -> bool:
        """False where p.grad is not the means of all ranks' gradients."""
        if self._passes_done > 0 or not self._exchanged:
            return False
        if self.overlap is not None and self.overlap.has_some:  # nobody has touched what is on its way
            return True
        parameters = self._memory.parameters
        given = [index for index in self._live.indices if parameters[index].grad is not None]
        if self._live.indices and not given:  # cleared since
            return self._gave_nothing
        replaced = [index for index in given if not self._memory.is_mean(index)]
        if replaced:
            self._warn_once(
                f"p.grad of {self._memory.names[replaced[0]]!r} was set anew after backward(), so it is taken for "
                "this worker's own gradient, and all gradients are exchanged once more; to change the workers' means, "
                "change them in place, such as p.grad.mul_()"
            )
        return not replaced

    def _require_no_scaler(self) -> None:
        if self._options.grad_scaler is None:
            return
        done = (
            f"after {self._passes_done} of {self._passes} calls of backward() (backward_passes_per_step)"
            if self._passes_done > 0
            else "with gradients that backward() has not exchanged"
        )
        raise RuntimeError(
            f"gradwire.torch: step() {done}, with grad_scaler: the scaler has looked at this rank's own gradients "
            "already, so that ranks may differ in whether to step; leave out the batches that do not fill a step, "
            "call backward() on a loss that reaches a parameter (0 * parameter.sum()), or leave "
            "backward_passes_per_step out and call all but a step's last backward() in optimizer.no_sync()"
        )

    def _begin_without_backward(self) -> None:
        """Has all take part whose gradients are exchanged without a backward(): also what is frozen and was given a
        gradient by hand.
        """
        self._await_overlapped()
        if self._momentum is not None and self._passes_done == 0:
            self._require_gradients()
        self._hooks.restore()
        self._choose_live(lambda index: self._requires_gradient(index) or self._memory.is_by_hand(index))

    def _require_gradients(self) -> None:
        stale = [index for index in self._live.indices if self._memory.is_delivered(index)]
        if stale:
            raise RuntimeError(
                "gradwire.torch: step() was called again without backward(), with momentum_correction: "
                f"{self._memory.names[stale[0]]!r} has the workers' mean momentum in p.grad, which is no gradient; "
                "call optimizer.zero_grad() after each step, or leave momentum_correction out"
            )

    def _take_in_late(self) -> None:
        """Exchanges, between a backward() and its step, what that one did not know."""
        if self._means.is_behind:
            self._await_overlapped()
        self._means.catch_up()

    def take_veto(self) -> bool:
        """Says whether this step is to be skipped, and forgets it."""
        return self._means.take_veto()

    def drop_gradients(self) -> None:
        """Leaves no gradient that an optimizer could step on."""
        for index in self._live.indices:
            self._memory.parameters[index].grad = None

    def count_step(self) -> None:
        """Says that a step is taken. A collective where there is a warm-up."""
        self.exchange.count_step()
        if self.sync:
            self.exchange.program_step = self.exchange.program_step % _LAST_STEP + 1

    def count_steps_anew(self) -> None:
        """Has all ranks be at the same step again, once all have joined."""
        self.exchange.program_step = 1

    def end_step(self) -> None:
        """Says that step() is over, taken or not: what comes next is exchanged anew."""
        self._exchanged = self._is_cleared = self._is_untaken = False
        if self._momentum is None:  # else memory tells the next step that p.grad is no gradient
            self._memory.release()

    def forget_gradients(self) -> None:
        """Says that gradients are cleared: likewise."""
        self._tell_of_untaken()
        self._exchanged, self._is_cleared = False, True
        self._memory.release()
        self._hooks.restore()

    def _tell_of_untaken(self) -> None:
        if not self._is_untaken:
            return
        self._is_untaken = False
        warnings.warn(
            "gradwire.torch: the last exchange of gradients was interrupted (KeyboardInterrupt), and this worker has "
            "not stepped on its means; workers that were not interrupted have, and are a step ahead. After an "
            "interruption call step(), which goes on where it was, before zero_grad() and backward(); or begin the "
            "training anew on all workers",
            RuntimeWarning,
            stacklevel=3,
        )

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(f"gradwire.torch: {text}", RuntimeWarning, stacklevel=3)

    # -- when it fails ---------------------------------------------------------------------------------

    def on_backward_failed(self) -> None:
        """Notes that a backward() raised an error before its end."""
        self._failed = True

    def settle(self) -> None:
        """Ends an exchange that was interrupted while it awaited sums. And ends a backward() that failed, which counts
        as one of those that are added up. Where it was the last of them the other ranks wait for what it has not sent:
        they get NaNs, so that they hear of it. p.grad is then what it is there, but None if that is no number. Either
        way step() does here what it does there.
        """
        if self._was_interrupted:
            self._was_interrupted = False
            self._end_exchange()
            self._is_untaken = True
        if not self._failed:
            return
        self._failed = False
        self._passes_done += 1
        if self._passes_done < self._passes:
            return
        self._passes_done = 0
        for index in self._live.indices:
            if not self._sender.is_sent(index):
                self._sender.send_instead(index, float("nan"))
            if not self._memory.share(index):
                self._memory.parameters[index].grad = None
        try:
            self._means.finish()
        except KeyboardInterrupt:  # the next call goes on
            self._failed, self._passes_done = True, self._passes - 1
            raise
        self._exchanged = True
        self._gave_nothing = self._means.vetoes_step or not all_finite(
            self._memory.parameters[index].grad for index in self._live.indices
        )
        if self._gave_nothing:
            self.drop_gradients()

    # -- ranks that have no batch left -----------------------------------------------------------------

    @torch.no_grad()
    def stand_in(self) -> None:
        """Takes part in what needs all ranks, also those that join before their next batch. A collective where there is
        any: leaving out what was frozen since the last one; and, with zeros, the step in which ranks agree what travels
        as rows, if that is still to come.
        """
        self._passes_done = 0  # what was not sent is this rank's alone
        self._choose_live(self._requires_gradient)
        if self._rows.is_made:
            return
        self._rows.stand_in()
        for index in self._live.indices:
            parameter = self._memory.parameters[index]
            if not self._memory.travels_as_rows(index) and self._memory.slot(index).holds(parameter.grad):
                parameter.grad = None
            self._sender.send_instead(index, 0.0)
        self._means.stand_in()

    def last_to_step(self, last: int) -> int:
        """As RowAgreement's."""
        return self._rows.last_to_step(last)

    # -- checkpoints -----------------------------------------------------------------------------------

    @property
    def row_names(self) -> dict[str, Any] | None:
        """What take_over_rows() takes: names of parameters whose gradients travel as rows, in groups, and of those that
        no rank has had a gradient of. None where ranks have not agreed yet.
        """
        if not (self._rows.sends_rows and self._rows.is_made):
            return None
        names = self._memory.names
        return {
            _GROUPS: [[names[index] for index in group] for group in self._rows.groups],
            _UNSEEN: [names[index] for index in sorted(self._rows.unseen)],
        }

    def take_over_rows(self, saved: Mapping[str, Any] | Sequence[str]) -> None:
        """Has gradients travel as rows that did in a job that was saved, in the place of what the first step would
        tell. A collective, before that.

        Args:
            saved: row_names of that job, or the names of one group alone, as older checkpoints have them.

        Raises:
            ValueError: they cannot here; or others do. The same on all ranks.
        """
        groups, unseen = (
            (saved[_GROUPS], saved[_UNSEEN]) if isinstance(saved, Mapping) else ([list(saved)], [])
        )
        names = {name for group in groups for name in group}
        here = {self._memory.names[index] for index in self._rows.rows}
        if different := sorted(here.difference(names).union(() if self._rows.sends_rows else names)):
            raise ValueError(
                f"gradwire.torch: gradients of {different[0]!r} travel as rows either here or in the job that was "
                "saved; give sparse_parameters, sparse_as_dense and what else has them summed as dense ones as there"
            )
        for group in groups:  # one by one: residuals fit buckets that have been bound in the same order
            if chosen := self._indices_of(set(group).difference(here)):
                self._live.use_rows(chosen)
                self._live.bind()
        self._rows.unseen = self._indices_of(unseen)
        self._rows.is_made = True

    def _indices_of(self, names: Collection[str]) -> list[int]:
        return [index for index, name in enumerate(self._memory.names) if name in names]
