"""What a device costs: the user's price, the run's, or the packaged table's with its date."""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.trace.texts import packaged_toml


@dataclass(frozen=True)
class Price:
    """US$ per device-hour. `low` and `high` bound what public lists ask, where the price is the
    table's; `date` is the table's, and empty for a price that was given."""

    usd_per_hour: float
    low_usd_per_hour: float
    high_usd_per_hour: float
    date: str
    source: str


def given_price(usd_per_hour: float, source: str) -> Price:
    return Price(usd_per_hour, usd_per_hour, usd_per_hour, "", source)


def table_price(device: str) -> Price | None:
    """The packaged table's price of a device by its name as the driver tells it; None: unknown."""
    table = packaged_toml("analysis/data/prices.toml")
    for entry in table["gpu"]:
        if any(part in device.lower() for part in entry["match"]):
            low, high = entry["range_usd_per_hour"]
            source = f"{entry['name']}: {entry['source']}"
            return Price(entry["usd_per_hour"], low, high, table["date"], source)
    return None
