"""One style, and one function a kind of figure; a module a family of figures.

    style          colours that keep their meaning, `use_style`, the axis of training steps
    over_training  `loss_curves`, `survival_curves`
    attention      `attention_maps`, `watched_run`
    capabilities   `emergence_steps`, `over_checkpoints`, `one_emergence`, `recovered_by_heads`,
                   `head_effects`, `token_attention`
    boards         `othello_board`, `probe_accuracy`, `influence_by_part`, `turned_discs`
    cells          `dose_response`, `loss_by_sparsity`, `rates`, `bit_accuracy`
    collapse       `three_phases`, `floors_by_task`, `agreement_of_sizes`, `collapse_depths`
    forecast       `order_by_window`, `carried_over`
    lenses         `lens_panels`, `before_at_after`
    layers         `rank_by_layer`, `falls_by_layer`, `which_end_first`
    named          `named_estimates`
    precursors     `measure_panels`, `lead_dots`, `rates_by_difficulty`, `definition_map`,
                   `against_chance`, `probe_panels`
    precaching     `probes_by_position`, `influence_by_position`
    proxies        `small_for_large`, `led_by_chance`, `concordances`
    scatters       `scatter`, `scatter_groups`
    waiting        `waits`

Notebooks draw through this package: ``plotting.loss_curves(…)``.
"""

from emergence_lib.plotting.attention import attention_maps, watched_run
from emergence_lib.plotting.boards import (
    influence_by_part,
    othello_board,
    probe_accuracy,
    turned_discs,
)
from emergence_lib.plotting.capabilities import (
    emergence_steps,
    head_effects,
    one_emergence,
    over_checkpoints,
    recovered_by_heads,
    token_attention,
)
from emergence_lib.plotting.cells import bit_accuracy, dose_response, loss_by_sparsity, rates
from emergence_lib.plotting.collapse import (
    agreement_of_sizes,
    collapse_depths,
    floors_by_task,
    three_phases,
)
from emergence_lib.plotting.forecast import carried_over, order_by_window
from emergence_lib.plotting.layers import falls_by_layer, rank_by_layer, which_end_first
from emergence_lib.plotting.lenses import before_at_after, lens_panels
from emergence_lib.plotting.named import named_estimates
from emergence_lib.plotting.over_training import loss_curves, survival_curves
from emergence_lib.plotting.precaching import influence_by_position, probes_by_position
from emergence_lib.plotting.precursors import (
    against_chance,
    definition_map,
    lead_dots,
    measure_panels,
    probe_panels,
    rates_by_difficulty,
)
from emergence_lib.plotting.proxies import concordances, led_by_chance, small_for_large
from emergence_lib.plotting.scatters import scatter, scatter_groups
from emergence_lib.plotting.style import (
    COMPONENT_COLOURS,
    DOMAIN_COLOURS,
    FORECAST_COLOURS,
    GRADIENT_COLOURS,
    GUIDE,
    MIXER_COLOURS,
    MODEL_SIZE_COLOURS,
    MOVE_COLOURS,
    OKABE_ITO,
    PAPER_GREY,
    PROFILE_COLOURS,
    PROMPT_COLOURS,
    SOURCE_COLOURS,
    STATE_SIZE_COLOURS,
    TASK_COLOURS,
    TRAINING_COLOURS,
    WAIT_COLOURS,
    step_axis,
    use_style,
)
from emergence_lib.plotting.waiting import waits

__all__ = [
    "COMPONENT_COLOURS",
    "DOMAIN_COLOURS",
    "FORECAST_COLOURS",
    "GRADIENT_COLOURS",
    "GUIDE",
    "MIXER_COLOURS",
    "MODEL_SIZE_COLOURS",
    "MOVE_COLOURS",
    "OKABE_ITO",
    "PAPER_GREY",
    "PROFILE_COLOURS",
    "PROMPT_COLOURS",
    "SOURCE_COLOURS",
    "STATE_SIZE_COLOURS",
    "TASK_COLOURS",
    "TRAINING_COLOURS",
    "WAIT_COLOURS",
    "against_chance",
    "agreement_of_sizes",
    "attention_maps",
    "before_at_after",
    "bit_accuracy",
    "carried_over",
    "collapse_depths",
    "concordances",
    "definition_map",
    "dose_response",
    "emergence_steps",
    "falls_by_layer",
    "floors_by_task",
    "head_effects",
    "influence_by_part",
    "influence_by_position",
    "lead_dots",
    "led_by_chance",
    "lens_panels",
    "loss_by_sparsity",
    "loss_curves",
    "measure_panels",
    "named_estimates",
    "one_emergence",
    "order_by_window",
    "othello_board",
    "over_checkpoints",
    "probe_accuracy",
    "probe_panels",
    "probes_by_position",
    "rank_by_layer",
    "rates",
    "rates_by_difficulty",
    "recovered_by_heads",
    "scatter",
    "scatter_groups",
    "small_for_large",
    "step_axis",
    "survival_curves",
    "three_phases",
    "token_attention",
    "turned_discs",
    "use_style",
    "waits",
    "watched_run",
    "which_end_first",
]
