"""Analysis: from runs, models and batches to numbers. It knows tasks, never an experiment.

    emergence    when something was learned, how long the plateau was, how wide the jump
    attention    entropy of heads and their agreement with the truth, watched during training
    capability   prompts with a known answer: probability, rank and solved, watched during training
    heads        previous-token, induction and duplicate-token scores, in-context-learning score
    geometry     effective rank of hidden states (RankMe), by layer and group, watched in training
    patching     heads of one checkpoint moved into another: Δp, top K, recovered fraction
    probes       ridge regressions from activations to features, at many sites
    hessian      largest eigenvalues of the Hessian, by sign or by size (Lanczos)
    llc          local learning coefficient (SGLD), and when it cannot be read
    gradient_rank  effective rank of single sequences' gradients: Fisher and covariance
    gradients    a gradient's direct, pre-cached and shared part at any residual vector (paper C)
    stop_gradient  the parts of a gradient by their definition, slow
    influence    which part built a feature, integrated over a training that is run twice
    precursor    collapse and recovery of a rank, whether they lead acquisition, and surrogates
    sparse_autoencoder  a residual stream as few directions out of many (TopK; Gemma Scope's files)
    features     what a latent does: ablation, Q, steering, look-ahead
    lenses       the instruments of all three papers at once, watched during training
    forecast     when something will happen, from the first part of its run (censored regression)
    survival     estimates for times that some seeds never reach, and intervals for few seeds

Import from the modules; `survival` brings lifelines, which the others do not need.
"""
