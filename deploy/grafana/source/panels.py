"""What a dashboard is made of: panels in rows, and the expressions that most of them ask.

A dashboard is a list of rows; a row has panels side by side, over 24 columns; a panel has queries, each an expression
with its legend. Every panel says which question it answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

COLUMNS = 24
HERE = 'instance=~"$instance"'
DEVICE = f'{HERE}, device=~"$device"'
FAULTS = "internal|device_failed|read_failed|insufficient_memory"
"""The reasons of failures that lie with the daemon or its machine."""
READY = f'{HERE}, outcome="ready"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. `queries` are pairs of an expression and its legend; `kind` is Grafana's type of panel."""

    title: str
    asks: str
    queries: Sequence[tuple[str, str]]
    unit: str
    kind: str = "timeseries"
    stacked: bool = False
    instant: bool = False
    exemplars: bool = False
    maximum: float | None = None
    thresholds: Sequence[tuple[str, float]] = ()
    decimals: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Panels side by side, of one height."""

    panels: Sequence[Panel]
    height: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One dashboard and its file's name."""

    name: str
    title: str
    about: str
    rows: Sequence[Row]
    devices: bool = False


def quantile(q: float, histogram: str, by: str = "", where: str = HERE) -> str:
    """A quantile of a histogram over the rate interval, per label `by`."""
    labels = f"{by}, le" if by else "le"
    rates = f"rate(ggufd_{histogram}_bucket{{{where}}}[$__rate_interval])"
    return f"histogram_quantile({q:g}, sum by ({labels}) ({rates}))"


def quantiles(histogram: str, where: str = HERE) -> list[tuple[str, str]]:
    """p50, p95 and p99."""
    return [(quantile(q, histogram, where=where), f"p{q * 100:.0f}") for q in (0.5, 0.95, 0.99)]


def rate(counter: str, by: str, where: str = HERE) -> str:
    """Events or bytes per second, per label `by`."""
    return f"sum by ({by}) (rate(ggufd_{counter}{{{where}}}[$__rate_interval]))"


def increase(counter: str, by: str, where: str = HERE) -> str:
    """Events over the dashboard's range, per label `by`, where there were any."""
    return f"sum by ({by}) (increase(ggufd_{counter}{{{where}}}[$__range])) > 0"


def total(gauge: str, by: str = "", where: str = HERE) -> str:
    """A gauge's sum over daemons, per label `by`."""
    return f"sum by ({by}) (ggufd_{gauge}{{{where}}})" if by else f"sum(ggufd_{gauge}{{{where}}})"


def of_loads(outcome: str) -> str:
    """Loads with an outcome that ended in the dashboard's range."""
    return f'sum(increase(ggufd_loads_total{{{HERE}, outcome=~"{outcome}"}}[$__range]))'
