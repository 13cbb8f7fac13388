"""What the Q runs say about claims C-10 to C-13: judges, and tables behind the figures.

A run is one model and its latents; every statement is made within a run first, and intervals are
over runs.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from emergence_lib.analysis.survival import Estimate, mean_interval
from emergence_lib.experiments.base import Verdict
from emergence_lib.experiments.evidence import over_runs, share_over_runs, with_interval
from emergence_lib.experiments.othello_evidence import as_floats
from emergence_lib.experiments.q_ratio_cell import (
    AHEAD,
    INFLUENCES,
    LEAST_KL,
    LEAST_KL_IN_TOYS,
    STEERED_GROUPS,
)
from emergence_lib.experiments.q_ratio_models import POCKET, TOYS
from emergence_lib.tasks.corpus_sources import DOMAINS

LEAST_RUNS = 3
LEAST_EXAMPLES = 4
LEAST_LATENTS = 10
"""Latents of a run (or of one of its groups) below which nothing is said of it."""

STRONG = 0.5
"""Rank correlation above which Q "approximates" what it is held against: our choice."""

TAILS = ("lowest fifth", "middle", "highest fifth")

TRUTHS = {
    "ratio_final": "squared gradients, finished model",
    "ratio_training": "squared gradients over training",
    "influence_share": "integrated influence",
}
"""What Q is held against: column → its name in figures."""

ESTIMATES = {"q_mean": "mean of ratios", "q_sum": "ratio of sums"}

NAMES = TRUTHS | ESTIMATES

PAPER_SPREAD = {"formal": 1.63, "other": 1.23}
"""Standard deviation of ln Q in Gemma-2-2b, ± .03 and ± .02."""

MODEL_NAMES = {
    "pile": "small language model",
    "majority": "toy (Majority)",
    "conditioned_majority": "toy (Conditioned Majority)",
    **{corpus: f"pocket suite ({size})" for corpus, size in POCKET.items()},
}

_COLUMNS = ("n", "immediate", "later", "q_mean", "q_sum", "ratio_final", "ratio_training")
_NOT_EVERYWHERE = (*INFLUENCES, *DOMAINS)


def of_models(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Rows by the model whose latents they have; name of `MODEL_NAMES` → rows."""
    return {
        name: rows[rows.corpus == corpus]
        for corpus, name in MODEL_NAMES.items()
        if (rows.corpus == corpus).any()
    }


def main_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The runs of the language model that is trained here, on which C-11 to C-13 rest."""
    return rows[rows.corpus == "pile"]


def latents(row: pd.Series) -> pd.DataFrame:
    """The latents of a run that pass the paper's filter, with finite and positive Q.

    Returns:
        A line a latent: the row's lists as columns; ln_q (of the ratio of sums); influence_share,
        the pre-cached share of the two influences' sizes with its sign, from -1 to 1; domain, the
        text the latent is most active on, "" in a toy task; ahead_n for the alignment at each
        distance.
    """
    table = pd.DataFrame({name: as_floats(row[name]) for name in _COLUMNS})
    for name in _NOT_EVERYWHERE:  # a column that was not measured is one null
        table[name] = as_floats(row[name])
    has_text = table[list(DOMAINS)].notna().any(axis=None)
    for ahead, values in zip(AHEAD, as_floats(row["alignment"]), strict=True):
        table[f"ahead_{ahead}"] = values
    size = table.influence_direct.abs() + table.influence_precached.abs()
    table["influence_share"] = table.influence_precached / size
    least = LEAST_KL_IN_TOYS if row["corpus"] in TOYS else LEAST_KL
    table = table[
        (table.immediate + table.later > least)
        & (table.n >= LEAST_EXAMPLES)
        & np.isfinite(table.q_mean)
        & (table.q_sum > 0)
        & (table[list(DOMAINS)].notna().all(axis=1) | (not has_text))
    ].copy()
    table["ln_q"] = np.log(table.q_sum)
    table["domain"] = ""
    if has_text:
        table["domain"] = [DOMAINS[i] for i in table[list(DOMAINS)].to_numpy().argmax(1)]
    return table


def correlations(rows: pd.DataFrame) -> pd.DataFrame:
    """Rank correlation of Q with what it stands for, over the latents of each run.

    Returns:
        Columns estimate (a key of `ESTIMATES`), truth (of `TRUTHS`), n (runs), value, low, high,
        and runs, the list of the runs' own correlations.
    """
    tables = [latents(row) for _, row in rows.iterrows()]
    lines = []
    for estimate in ESTIMATES:
        for truth in TRUTHS:
            runs = [rank_correlation(t[estimate], t[truth]) for t in tables]
            lines.append((estimate, truth, len(runs), *over_runs(runs), runs))
    return pd.DataFrame(lines, columns=["estimate", "truth", "n", "value", "low", "high", "runs"])


def rank_correlation(a: pd.Series, b: pd.Series) -> float:
    """Spearman's, over what is finite on both sides; NaN for fewer than `LEAST_LATENTS`."""
    known = np.isfinite(a) & np.isfinite(b)
    if known.sum() < LEAST_LATENTS or a[known].nunique() < 2 or b[known].nunique() < 2:
        return float("nan")
    return float(spearmanr(a[known], b[known]).statistic)


def q_against_gradients(
    rows: pd.DataFrame, truth: str = "ratio_final"
) -> dict[str, tuple[list[float], list[float]]]:
    """Domain → (ln of the ratio of squared gradients, ln Q), a value a latent of these runs."""
    points: dict[str, tuple[list[float], list[float]]] = {domain: ([], []) for domain in DOMAINS}
    for _, row in rows.iterrows():
        for _, latent in latents(row).iterrows():
            if latent[truth] > 0:
                x, y = points[latent["domain"]]
                x.append(float(np.log(latent[truth])))
                y.append(float(latent["ln_q"]))
    return points


def spreads(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean and standard deviation of ln Q by the text a latent is for.

    Returns:
        Columns seed, domain, latents, mean, sd; groups of fewer than `LEAST_LATENTS` are left out.
    """
    lines = []
    for _, row in rows.iterrows():
        for domain, group in latents(row).groupby("domain"):
            if len(group) >= LEAST_LATENTS:
                lines.append((row["seed"], domain, len(group), group.ln_q.mean(), group.ln_q.std()))
    return pd.DataFrame(lines, columns=["seed", "domain", "latents", "mean", "sd"])


def spread_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Of ln Q; columns measure ("mean", "standard deviation"), domain, value, low, high, runs."""
    table = spreads(rows)
    lines = []
    for measure, column in (("mean", "mean"), ("standard deviation", "sd")):
        for domain in DOMAINS:
            runs = table[table.domain == domain][column].tolist()
            lines.append((measure, domain, *over_runs(runs), runs))
    return pd.DataFrame(lines, columns=["measure", "domain", "value", "low", "high", "runs"])


def tails(rows: pd.DataFrame) -> pd.DataFrame:
    """How many of the latents with the lowest, middling and highest Q are for code.

    Returns:
        Columns tail (of `TAILS`, a fifth of a run's latents each but for the middle), n (runs),
        value, low, high, and runs: shares.
    """
    shares = []
    for _, row in rows.iterrows():
        is_code = (latents(row).sort_values("ln_q").domain == "code").to_numpy()
        fifth = len(is_code) // 5
        if len(is_code) >= LEAST_LATENTS:
            parts = is_code[:fifth], is_code[fifth:-fifth], is_code[-fifth:]
            shares.append([part.mean() for part in parts])
    lines = []
    for tail, runs in zip(TAILS, np.array(shares).reshape(-1, 3).T.tolist(), strict=True):
        lines.append((tail, len(runs), *share_over_runs(runs), runs))
    return pd.DataFrame(lines, columns=["tail", "n", "value", "low", "high", "runs"])


def steered(rows: pd.DataFrame) -> pd.DataFrame:
    """What is written under steering.

    Returns:
        Columns measure ("code", "punctuation"), group (of `STEERED_GROUPS`), n, value, low, high,
        runs.
    """
    lines = []
    for measure in ("code", "punctuation"):
        runs = [as_floats(v) for v in rows[f"steered_{measure}"]]
        for g, group in enumerate(STEERED_GROUPS):
            values = [run[g] for run in runs]
            lines.append((measure, group, len(values), *over_runs(values), values))
    return pd.DataFrame(lines, columns=["measure", "group", "n", "value", "low", "high", "runs"])


def look_ahead(rows: pd.DataFrame) -> pd.DataFrame:
    """Rank correlation of ln Q with the alignment to the look-ahead map, by distance.

    Returns:
        Columns ahead (tokens), n (runs), value, low, high, runs.
    """
    tables = [latents(row) for _, row in rows.iterrows()]
    lines = []
    for ahead in AHEAD:
        runs = _ahead_correlations(tables, [ahead])
        lines.append((ahead, len(runs), *over_runs(runs), runs))
    return pd.DataFrame(lines, columns=["ahead", "n", "value", "low", "high", "runs"])


def _ahead_correlations(tables: list[pd.DataFrame], distances: list[int]) -> list[float]:
    """A run's correlation of ln Q with the mean alignment over distances."""
    names = [f"ahead_{ahead}" for ahead in distances]
    return [rank_correlation(t[names].mean(axis=1), t.ln_q) for t in tables]


def quality_sentence(rows: pd.DataFrame) -> str:
    """What the autoencoders leave unexplained, and how many latents are looked at."""
    if not len(rows):
        return "Nothing is recorded yet."
    kept = [len(latents(row)) for _, row in rows.iterrows()]
    return (
        f"The autoencoders leave {with_interval(over_runs(rows.unexplained), '.1%')} of the "
        f"variance unexplained with {rows.active.mean():.1f} active latents a token; "
        f"{min(kept)} to {max(kept)} latents a run pass the filter (total KL above {LEAST_KL}, in "
        f"toy tasks {LEAST_KL_IN_TOYS:g})."
    )


def judge_q_is_the_ratio(rows: pd.DataFrame) -> Verdict:
    """C-10: latents with a larger Q have a larger ratio of pre-cached to direct.

    By rank correlation over latents within a run, with intervals over runs, Q as the ratio of sums,
    for each model that has three runs with ten latents. "reproduced": in every such model above 0.5
    with the ratio of squared gradients over training, and above 0 with the pre-cached share of
    integrated influence; "partly": in one at least above 0 with the former; "not reproduced"
    otherwise. Without such a model nothing is tested.
    """
    strong, weak, n, sentences = [], [], 0, []
    for name, some in of_models(rows).items():
        table = correlations(some).set_index(["estimate", "truth"])
        known = int(np.isfinite(table.loc[("q_sum", "ratio_training"), "runs"]).sum())
        words = _correlations_in_words(name, table, some)
        if known < LEAST_RUNS:
            if known:
                sentences.append(f"{words} (n = {known}: shown, not judged).")
            continue
        low = table["low"].loc["q_sum"]
        weak.append(low["ratio_training"] > 0)
        strong.append(low["ratio_training"] > STRONG and low["influence_share"] > 0)
        n += known
        sentences.append(f"{words} (n = {known} runs).")
    if not strong:
        return _too_few()
    status = "reproduced" if all(strong) else "partly" if any(weak) else "not reproduced"
    start = "Rank correlation of Q (ratio of sums) over latents with the ratio of pre-cached to "
    return Verdict(status, f"{start}direct. {' '.join(sentences)}", n)


def _correlations_in_words(name: str, table: pd.DataFrame, rows: pd.DataFrame) -> str:
    words = "; ".join(
        f"{truth_name} {_interval(table.loc[('q_sum', truth)])}"
        for truth, truth_name in TRUTHS.items()
    )
    paper = _interval(table.loc[("q_mean", "ratio_training")])
    size = over_runs(
        float(np.log(t.q_sum / t.ratio_final).median())
        for t in (latents(row) for _, row in rows.iterrows())
    )
    return (
        f"{name[0].upper()}{name[1:]}: {words}; by the paper's mean of ratios, over training: "
        f"{paper}; in size Q differs from the finished model's ratio by a factor of "
        f"e^{with_interval(size, '.2f')} in the median"
    )


def judge_extremes_are_formal(rows: pd.DataFrame) -> Verdict:
    """C-11: ln Q spreads more among latents for code than among those for other text.

    A latent belongs to the text on which it is most active. By the logarithm of the ratio of
    standard deviations within a run, with intervals over runs. "reproduced": above 0 against prose
    and against stories; "partly": against one of them; "not reproduced": against neither. Fewer
    than three runs with ten latents a group test nothing.
    """
    rows = main_rows(rows)
    sd = spreads(rows).pivot(index="seed", columns="domain", values="sd").reindex(columns=DOMAINS)
    sd = sd.dropna()
    if len(sd) < LEAST_RUNS:
        return _too_few(" of each domain")
    more = {other: mean_interval(np.log(sd.code / sd[other])) for other in ("prose", "story")}
    wider = [estimate.low > 0 for estimate in more.values()]
    status = "reproduced" if all(wider) else "partly" if any(wider) else "not reproduced"
    means = spreads(rows).groupby("domain")["mean"].mean()
    in_tails = ", ".join(f"{t['tail']} {_interval(t)}" for _, t in tails(rows).iterrows())
    evidence = (
        f"Standard deviation of ln Q: code {_mean(sd.code)}, prose {_mean(sd.prose)}, stories "
        f"{_mean(sd.story)}; ln of code over prose {with_interval(more['prose'], '.2f')}, over "
        f"stories {with_interval(more['story'], '.2f')} (n = {len(sd)} runs). Means of ln Q: code "
        f"{means['code']:.2f}, prose {means['prose']:.2f}, stories {means['story']:.2f}. Share of "
        f"code among latents by Q: {in_tails}. The stories hold lists, digits and chants, which "
        f"are formal too."
    )
    return Verdict(status, evidence, len(sd))


def judge_steering(rows: pd.DataFrame) -> Verdict:
    """C-12: steering with high-Q latents gives more code and punctuation than with middling ones.

    By the mean P(code | token) and the share of punctuation of what is written, a run's difference
    between the top and the middle tenth by Q, with intervals over runs. "reproduced": both are
    above 0; "partly": one; "not reproduced": none. Fewer than three runs test nothing.
    """
    rows = main_rows(rows)
    high, middle = (STEERED_GROUPS.index(g) for g in ("high Q", "middle Q"))
    differences = {}
    for measure in ("code", "punctuation"):
        runs = [as_floats(v) for v in rows[f"steered_{measure}"]]
        differences[measure] = [r[high] - r[middle] for r in runs if np.isfinite(r).all()]
    known = min(map(len, differences.values()))
    if known < LEAST_RUNS:
        return _too_few()
    more = {measure: mean_interval(values) for measure, values in differences.items()}
    above = [estimate.low > 0 for estimate in more.values()]
    status = "reproduced" if all(above) else "partly" if any(above) else "not reproduced"
    table = steered(rows).set_index(["measure", "group"])
    words = "; ".join(
        f"{measure} {_interval(table.loc[(measure, 'high Q')])} with the highest Q, "
        f"{_interval(table.loc[(measure, 'middle Q')])} with middling Q, "
        f"{_interval(table.loc[(measure, 'not steered')])} unsteered, difference of the first two "
        f"{with_interval(more[measure], '.3f')}"
        for measure in more
    )
    return Verdict(status, f"Shares of what is written: {words} (n = {known} runs).", known)


def judge_look_ahead(rows: pd.DataFrame) -> Verdict:
    """C-13: latents that the look-ahead map answers to do not have a larger Q.

    By the rank correlation within a run of ln Q with the alignment to the maps for tokens 2, 3 and
    5 ahead, with the interval over runs. "reproduced": below 0, as in the paper; "partly": it
    includes 0, so no relation is shown either way; "not reproduced": above 0. Fewer than three runs
    test nothing.
    """
    tables = [latents(row) for _, row in main_rows(rows).iterrows()]
    runs = [r for r in _ahead_correlations(tables, list(AHEAD[1:])) if np.isfinite(r)]
    if len(runs) < LEAST_RUNS:
        return _too_few()
    relation = mean_interval(runs)
    if relation.high < 0:
        status = "reproduced"
    else:
        status = "not reproduced" if relation.low > 0 else "partly"
    control = over_runs(_ahead_correlations(tables, [AHEAD[0]]))
    evidence = (
        f"Rank correlation of ln Q with the alignment to the look-ahead maps (2, 3 and 5 tokens): "
        f"{with_interval(relation, '.2f')} (n = {len(runs)} runs); with the map to the model's own "
        f"next token {with_interval(control, '.2f')}."
    )
    return Verdict(status, evidence, len(runs))


def _too_few(of: str = "") -> Verdict:
    reason = f"At least {LEAST_RUNS} runs with {LEAST_LATENTS} latents{of} are needed."
    return Verdict("not tested here", reason, 0)


def _interval(line: pd.Series) -> str:
    return with_interval(Estimate(line["value"], line["low"], line["high"]), ".2f")


def _mean(values: pd.Series) -> str:
    return with_interval(mean_interval(values), ".2f")
