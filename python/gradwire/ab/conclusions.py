"""What an A/B experiment says in words: a headline, the advice, and a paragraph on each arm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradwire.ab.experiment import UNSHAPED, Run, RunFailed
from gradwire.ab.names import arm_name, link_name, sentence
from gradwire.report.paired_statistics import Interval
from gradwire.settings.units import format_duration

if TYPE_CHECKING:
    from gradwire.ab.summary import ArmSummary, Outcome

_UNITS = ((120.0, 1, "s"), (7200.0, 60, "min"), (float("inf"), 3600, "h"))  # each up to so many seconds
_ALIKE = 1.05  # times sooner, up to which times count as the same where there is no interval


def headline(outcome: Outcome) -> str:
    """Returns "2bit was at 74 % after 6 s, no compression after 29 s: 4.8 times sooner; final accuracies ..."."""
    base = outcome.arms[0]
    if not outcome.ended_runs:
        return "No run has ended."
    if outcome.target is None:
        return "No arm has a run that ended well with a finite result, so nothing can be compared."
    best = _soonest(outcome)
    if base.mishaps:
        trouble = f"{base.name} {' and '.join(base.mishaps)}"
        text = trouble if best is None else f"{_was_at(outcome, best)}; {trouble}"
        return sentence(f"{text}.")
    if base.seconds_to_target is None:  # with --target, or where the first arm has not run yet
        text = (
            f"{base.name} did not reach {write_target(outcome)}" if base.runs else f"{base.name} has not run"
        )
        text = text if best is None else f"{_was_at(outcome, best)}; {text}"
        return sentence(f"{text}; {_finals(outcome, [base] if best is None else [best, base])}.")
    if best is None:
        others = [arm for arm in outcome.arms[1:] if arm.runs and not arm.mishaps]
        missed = f"; {_join([arm.name for arm in others])} did not reach it in every run" if others else ""
        broken = [arm for arm in outcome.arms[1:] if arm.mishaps]
        missed += "".join(f"; {arm.name} {'failed' if arm.failures else 'diverged'}" for arm in broken)
        return sentence(f"{_was_at(outcome, base)}{missed}; {_finals(outcome, [base, *others])}.")
    ratio = outcome.times_sooner(best)
    assert ratio is not None  # both reached it
    first, second = (best, base) if ratio >= 1 else (base, best)
    text = f"{_was_at(outcome, first)}, {second.name} after {write_seconds(second.seconds_to_target)}"
    if max(ratio, 1 / ratio) < _ALIKE:
        text += ": no sooner"
    else:
        text += f": {_times(ratio)} sooner" if ratio > 1 else f": {_times(1 / ratio)} later"
    return sentence(f"{text}; {_finals(outcome, [first, second])}.")


def conclusions(outcome: Outcome) -> list[str]:
    """Returns the advice, and a paragraph on each arm but the first."""
    base = outcome.arms[0]
    found = []
    if len(outcome.arms) == 1:
        found.append(f"Nothing to compare: {base.name} was the only arm.")
    elif advice := _advice(outcome):
        found.append(advice)
    found += [_paragraph(outcome, arm) for arm in outcome.arms[1:]]
    if outcome.has_seeds_alike:
        found.append(
            f"All seeds of {base.name} ended alike, so they count as one: have the script seed its generators with "
            'int(os.environ["GRADWIRE_SEED"]).'
        )
    return found


def verdict(outcome: Outcome) -> str:
    """Returns the headline and the conclusions as one text, with the number of seeds and the link."""
    so_far = ""
    if outcome.ended_runs < outcome.expected_runs:
        so_far = f"After {outcome.ended_runs} of {outcome.expected_runs} runs: "
    text = f"{so_far}{' '.join([outcome.headline, *outcome.conclusions])}"
    return text if len(outcome.arms) == 1 else f"{text} ({basis(outcome)}.)"


def basis(outcome: Outcome) -> str:
    """Says on how many seeds the conclusions rest, and what brackets mean."""
    seeds = outcome.seeds
    how = "brackets: 95 % intervals of the paired differences" if seeds > 1 else "one seed gives no intervals"
    return f"{seeds} seed{'s' if seeds != 1 else ''}; {how}; link: {link_name(outcome.link)}"


def baseline(ended: Sequence[Run | RunFailed], workers: int, servers: int) -> str | None:
    """Says what the arm without a codec is, so that nobody takes it for another library's sum; None: none
    has run, or there is one worker."""
    runs = [run for run in ended if isinstance(run, Run) and run.arm == "none"]
    if not runs or workers == 1:
        return None
    if any(run.result.has_store is False for run in runs):
        return f"{arm_name('none')}: what the script does by itself, since nothing of gradwire exchanged gradients"
    if servers == 0:
        return f"{arm_name('none')}: gradwire's sums between the workers, not DDP's own all-reduce"
    return (
        f"{arm_name('none')}: gradwire's sums over {servers} server{'s' if servers > 1 else ''}, not DDP's own "
        "all-reduce; with -s 0 the workers sum, as there"
    )


def write_target(outcome: Outcome) -> str:
    """Returns "74 %" or "loss 2.18"."""
    value = outcome.target
    if value is None:
        return "no target"
    return f"{100 * value:.4g} %" if outcome.metric == "accuracy" else f"loss {value:.5g}"


def write_seconds(seconds: float | None) -> str:
    """Returns "6.2 s", "29 s" or "4.2 min"."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return format_duration(seconds) if seconds > 0 else "0 s"
    size, unit = next((size, unit) for most, size, unit in _UNITS if seconds < most)
    value = seconds / size
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"


def _was_at(outcome: Outcome, arm: ArmSummary) -> str:
    return f"{arm.name} was at {write_target(outcome)} after {write_seconds(arm.seconds_to_target)}"


def _times(ratio: float) -> str:
    return f"{ratio:.1f} times" if ratio < 9.95 else f"{ratio:.0f} times"


def _finals(outcome: Outcome, arms: Sequence[ArmSummary]) -> str:
    """Returns "final accuracies 76.2 and 75.7 %"."""
    values = [arm.final for arm in arms if arm.final is not None]
    is_accuracy = outcome.metric == "accuracy"
    form, unit = ("{:.1f}", " %") if is_accuracy else ("{:.4g}", "")
    written = [form.format(100 * value if is_accuracy else value) for value in values]
    if not written:
        return f"no final {outcome.metric}"
    plural = ("accuracies" if is_accuracy else "losses") if len(written) > 1 else outcome.metric
    return f"final {plural} {_join(written)}{unit}"


def _join(texts: Sequence[str]) -> str:
    """Returns "a, b and c"."""
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _soonest(outcome: Outcome) -> ArmSummary | None:
    """The arm after the first that all of its runs brought to the target the soonest, and that is not worse."""
    fit = [
        arm
        for arm in outcome.arms[1:]
        if arm.seconds_to_target is not None and not arm.mishaps and outcome.judge(arm) != "worse"
    ]
    return min(fit, key=lambda arm: arm.seconds_to_target or 0.0, default=None)


def _is_sooner(ratio: Interval | None, mean: float | None) -> bool | None:
    """True: sooner for certain; False: not sooner for certain; None: the interval leaves it open."""
    if mean is None:
        return False
    if ratio is None or ratio.low is None or ratio.high is None:
        return mean >= _ALIKE
    return True if ratio.low > 1 else False if ratio.high < 1 else None


def _advice(outcome: Outcome) -> str:
    base, best = outcome.arms[0], _soonest(outcome)
    if base.mishaps:
        return f"There is nothing to compare with: {base.name} {' and '.join(base.mishaps)}. Mend that first."
    if not base.runs:
        return ""
    if outcome.link == UNSHAPED:
        return _advice_unshaped(outcome)
    where = f"on a link of {link_name(outcome.link)}"
    if best is None:
        if not any(arm.runs for arm in outcome.arms[1:]):
            return ""
        others = f"each other arm failed, diverged, ended worse or did not reach {write_target(outcome)}"
        return f"{_keep(base)} {where}: {others}."
    sooner = _is_sooner(best.sooner, outcome.times_sooner(best))
    if sooner is False:
        return f"{_keep(base)} {where}: no other arm reached {write_target(outcome)} sooner."
    if sooner is None:
        return (
            f"Whether {best.name} is sooner {where} is open: 1 is within the interval. More seeds narrow it."
        )
    judged = outcome.judge(best)
    if judged == "better":
        return f"Use {best.name} for this job {where}: it is sooner, and ends better."
    if outcome.ends_as_well(best):
        return f"Use {best.name} for this job {where}: it is sooner, and {_none_lost(outcome)}."
    return (
        f"{best.name} is sooner {where}. Whether it ends at the same {outcome.metric} is still open "
        f"({judged.removeprefix('inconclusive, ')})."
    )


def _advice_unshaped(outcome: Outcome) -> str:
    """Advises by the final metric alone: without a shaped link, times say nothing of a network."""
    fit = [arm.name for arm in outcome.arms[1:] if outcome.ends_as_well(arm)]
    link = "No link was shaped, so times say nothing about a slow network: use --bandwidth to try one."
    if not outcome.ended_runs or not any(arm.runs for arm in outcome.arms[1:]):
        return link
    if not fit:
        return f"Of no arm is it clear that it ends as well as {outcome.arms[0].name}. {link}"
    return f"By their final {outcome.metric}, these can be used ({_none_lost(outcome)}): {_join(fit)}. {link}"


def _none_lost(outcome: Outcome) -> str:
    worse = "loss of accuracy" if outcome.metric == "accuracy" else "higher loss"
    return f"no {worse} that matters was seen"


def _keep(base: ArmSummary) -> str:
    return "Do not compress this job" if base.arm == "none" else f"Keep {base.name} for this job"


def _paragraph(outcome: Outcome, arm: ArmSummary) -> str:
    """Says when an arm reached the target, what became of its accuracy, and what it sent."""
    said = []
    if arm.mishaps:
        is_worse = arm.diverged and not arm.failures and not outcome.arms[0].diverged
        said.append(f"{sentence(arm.name)} {' and '.join(arm.mishaps)}{': worse' if is_worse else ''}.")
    elif not arm.runs:
        return f"{sentence(arm.name)}: {outcome.judge(arm)}."
    said += _times_said(outcome, arm)
    if not arm.mishaps:
        if arm.difference is None:
            said.append(f"There is {outcome.judge(arm)}.")
        else:
            by = outcome.write_difference(arm.difference)
            said.append(f"Its final {outcome.metric} differs by {by}: {outcome.judge(arm)}.")
    fewer = outcome.times_fewer_bytes(arm)
    if fewer is not None and not 0.95 < fewer < _ALIKE:
        said.append(
            f"It sends {_times(fewer)} fewer bytes."
            if fewer > 1
            else f"It sends {_times(1 / fewer)} as many bytes."
        )
    text = " ".join(said)
    return text if arm.mishaps or text.startswith(arm.name) else f"{sentence(arm.name)}: {text}"


def _times_said(outcome: Outcome, arm: ArmSummary) -> list[str]:
    base, name = outcome.arms[0], sentence(arm.name)
    if outcome.target is None or not arm.runs or arm.diverged:
        return []
    target = write_target(outcome)
    if arm.seconds_to_target is None:
        return [f"{name} did not reach {target} in every run."]
    ratio = outcome.times_sooner(arm)
    if ratio is None:
        return [f"{name} reached {target} after {write_seconds(arm.seconds_to_target)}."]
    brackets = ""
    if arm.sooner is not None and arm.sooner.low is not None and arm.sooner.high is not None:
        low, high = arm.sooner.low, arm.sooner.high
        if ratio < 1:
            low, high = 1 / high, 1 / low
        brackets = f" [{low:.3g}, {high:.3g}]"
    if max(ratio, 1 / ratio) < _ALIKE:
        return [f"{name} reached {target} at the same time as {base.name}{brackets}."]
    how = f"{_times(ratio)} sooner" if ratio > 1 else f"{_times(1 / ratio)} later"
    return [f"{name} reached {target} {how} than {base.name}{brackets}."]
