"""Runs -> the table: medians, the best peer, the ratio to it, won or lost. Pure functions."""

import statistics

TANDEM = "Tandem"


def goal(model, bits, cell):
    """What Tandem aims at, times the best peer."""
    if cell == "decode b1":
        return 1.15 if bits == 16 else 1.4
    if cell == "decode b32" and model == "M1":
        return 1.6
    return 1.15


def rows(runs):
    """`runs`: [{"model", "bits", "engine", "cell", "round", "tokens_per_second", "read_gigabytes_per_second"}] -> one row for each model,
    bits and cell in the order in which they first came, with each engine's median and the median of the bandwidth beside it. Modes of one
    engine ("ik_llama.cpp, repacked") are engines of their own here. A ratio is the median over the rounds that both were measured in, seconds
    apart: on a shared machine the bandwidth of one minute isn't that of the next."""
    grouped = {}
    for run in runs:
        engines = grouped.setdefault((run["model"], run["bits"], run["cell"]), {})
        engines.setdefault(run["engine"], []).append(run)
    return [_row(*key, engines) for key, engines in grouped.items()]


def _row(model, bits, cell, engines):
    figures = {name: {"tokens_per_second": statistics.median(run["tokens_per_second"] for run in runs),
                      "read_gigabytes_per_second": statistics.median(run["read_gigabytes_per_second"] for run in runs),
                      "runs": len(runs)} for name, runs in engines.items()}
    row = {"model": model, "bits": bits, "cell": cell, "engines": figures, "goal": goal(model, bits, cell)}
    row["ratios"] = {name: statistics.median(ratios) for name, ratios in
                     ((name, _ratios(engines.get(TANDEM, []), runs)) for name, runs in engines.items() if name != TANDEM) if ratios}
    if row["ratios"]:
        row["best_peer"] = min(row["ratios"], key=row["ratios"].get)
        row["ratio"] = row["ratios"][row["best_peer"]]
        row["verdict"] = verdict(row["ratio"], row["goal"])
    return row


def _ratios(ours, theirs):
    rates = {run["round"]: run["tokens_per_second"] for run in theirs}
    return [run["tokens_per_second"] / rates[run["round"]] for run in ours if run["round"] in rates]


def verdict(ratio, wanted):
    if ratio >= wanted:
        return "won, goal met"
    return "won, below the goal" if ratio > 1 else "lost"


def markdown(table):
    names = []
    for row in table:
        names += [name for name in row["engines"] if name not in names]
    names.sort(key=lambda name: name != TANDEM)  # Tandem first, the others as they came
    lines = ["| model | bits | what | " + " | ".join(names) + " | best peer | ratio | goal | |",
             "| --- | --- | --- |" + " --- |" * len(names) + " --- | --- | --- | --- |"]
    for row in table:
        cells = [_figure(row["engines"].get(name)) for name in names]
        outcome = [row["best_peer"], f"{row['ratio']:.2f}", f"{row['goal']:.2f}", row["verdict"]] if "ratio" in row else \
                  ["–", "–", f"{row['goal']:.2f}", "not compared"]
        lines.append("| " + " | ".join([row["model"], str(row["bits"]), row["cell"], *cells, *outcome]) + " |")
    return "\n".join(lines) + "\n"


def _figure(figure):
    if figure is None:
        return "–"
    rate = figure["tokens_per_second"]
    return f"{rate:,.0f} ({figure['read_gigabytes_per_second']:.0f})" if rate >= 100 else \
           f"{rate:.1f} ({figure['read_gigabytes_per_second']:.0f})"
