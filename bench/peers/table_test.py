import table


def run(engine, rate, model="M1", bits=16, cell="decode b8", read=40.0, number=0):
    return {"model": model, "bits": bits, "engine": engine, "cell": cell, "round": number, "tokens_per_second": rate,
            "read_gigabytes_per_second": read}


def rounds(engine, *rates, first=0):
    return [run(engine, rate, number=first + i) for i, rate in enumerate(rates)]


def test_a_row_has_medians_and_the_best_peer():
    runs = rounds("Tandem", 100, 130, 120) + rounds("llama.cpp", 80, 90, 100)
    runs += [run("vLLM CPU", 95), run("vLLM CPU", 97, read=50.0, number=1)]
    row, = table.rows(runs)
    assert row["engines"]["Tandem"] == {"tokens_per_second": 120, "read_gigabytes_per_second": 40.0, "runs": 3}
    assert row["engines"]["vLLM CPU"] == {"tokens_per_second": 96, "read_gigabytes_per_second": 45.0, "runs": 2}
    assert (row["best_peer"], row["verdict"]) == ("vLLM CPU", "won, goal met")
    assert row["ratio"] == (100 / 95 + 130 / 97) / 2


def test_ratios_are_of_common_rounds():
    # The machine was twice as fast when the second peer was measured; Tandem's median over both is of neither.
    runs = rounds("Tandem", 10, 10, 10) + rounds("slow minutes", 9, 9, 9) + rounds("Tandem", 20, 20, 20, first=9)
    row, = table.rows(runs + rounds("fast minutes", 16, 16, 16, first=9))
    assert row["best_peer"] == "slow minutes" and row["ratio"] == 10 / 9
    assert row["ratios"] == {"slow minutes": 10 / 9, "fast minutes": 1.25}
    assert "ratio" not in table.rows(rounds("Tandem", 10) + rounds("llama.cpp", 5, first=7))[0]


def test_bits_and_models_are_not_mixed():
    runs = [run("Tandem", 10), run("llama.cpp", 5, bits=8), run("llama.cpp", 20, model="M2"), run("llama.cpp", 20)]
    rows = table.rows(runs)
    assert [(row["model"], row["bits"]) for row in rows] == [("M1", 16), ("M1", 8), ("M2", 16)]
    assert rows[0]["ratio"] == 0.5 and rows[0]["verdict"] == "lost"
    assert "ratio" not in rows[1] and "ratio" not in rows[2]


def test_goals():
    assert table.goal("M3", 16, "prefill 512") == 1.15
    assert table.goal("M3", 16, "decode b1") == 1.15
    assert table.goal("M3", 8, "decode b1") == table.goal("M1", 4, "decode b1") == 1.4
    assert table.goal("M1", 16, "decode b32") == 1.6
    assert table.goal("M2", 16, "decode b32") == 1.15


def test_verdicts():
    assert table.verdict(1.15, 1.15) == "won, goal met"
    assert table.verdict(1.1, 1.15) == "won, below the goal"
    assert table.verdict(1.0, 1.15) == "lost"


def test_markdown_keeps_lost_and_missing_figures():
    text = table.markdown(table.rows([run("llama.cpp", 151.2), run("Tandem", 75.61), run("vLLM CPU", 9, model="M2")]))
    lines = text.splitlines()
    assert lines[0] == "| model | bits | what | Tandem | llama.cpp | vLLM CPU | best peer | ratio | goal | |"
    assert lines[2] == "| M1 | 16 | decode b8 | 75.6 (40) | 151 (40) | – | llama.cpp | 0.50 | 1.15 | lost |"
    assert lines[3] == "| M2 | 16 | decode b8 | – | – | 9.0 (40) | – | – | 1.15 | not compared |"
