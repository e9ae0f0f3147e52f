"""What can be wrong, by a name that stays. Owns the ids and, for each, what it means and what to do about it.

The ids are part of the command's interface (`--json`): one is never renamed, and never given to something else.
"""

from __future__ import annotations

from enum import StrEnum

from hintloop_contract.diagnosis.explanations import BY_ID, Explanation

__all__ = ["EXPLANATIONS", "Cause", "Explanation"]


class Cause(StrEnum):
    """Probable causes, in the order of the chain."""

    CONFIGURATION_INVALID = "configuration_invalid"
    GENERATED_SCORING = "generated_scoring"
    KL_IN_OPD = "kl_in_opd"
    LEARNING_RATE_ZERO = "learning_rate_zero"
    HINTS_SWITCHED_OFF = "hints_switched_off"
    UNHINTED_TURNS_TRAINED = "unhinted_turns_trained"
    EQUAL_VOTES = "equal_votes"
    STUDENT_UNREADABLE = "student_unreadable"
    REDIS_AWAY = "redis_away"
    REDIS_MAY_EVICT = "redis_may_evict"
    REDIS_NOT_DURABLE = "redis_not_durable"
    REDIS_FULL = "redis_full"
    DEAD_LETTERS = "dead_letters"
    PROXY_AWAY = "proxy_away"
    POLICY_ENGINE_AWAY = "policy_engine_away"
    CAPTURE_UNPROVEN = "capture_unproven"
    SAMPLING_DEFAULTS_UNPROVEN = "sampling_defaults_unproven"
    RENDERING_DIFFERS = "rendering_differs"
    PRM_ENGINE_AWAY = "prm_engine_away"
    PRM_ENGINE_KEY_WRONG = "prm_engine_key_wrong"
    PRM_GIVES_NO_LOGPROBS = "prm_gives_no_logprobs"
    PRM_SHIFTED = "prm_shifted"
    TOKENIZER_DIFFERS = "tokenizer_differs"
    TOP_K_ABOVE_LIMIT = "top_k_above_limit"
    TEACHER_MODEL_MISSING = "teacher_model_missing"
    PRM_ADDRESS_WRONG = "prm_address_wrong"
    TEACHER_CONTEXT_SHORT = "teacher_context_short"
    TEMPERATURE_DIFFERS = "temperature_differs"
    PRM_SERVICE_AWAY = "prm_service_away"
    PRM_KEY_WRONG = "prm_key_wrong"
    JUDGE_ENGINE_AWAY = "judge_engine_away"
    JUDGE_KEY_WRONG = "judge_key_wrong"
    JUDGE_MODEL_MISSING = "judge_model_missing"
    VOTES_CUT = "votes_cut"
    VOTES_FAIL = "votes_fail"
    NO_HINTS = "no_hints"
    HINTS_NOT_CONCRETE = "hints_not_concrete"
    HINTS_REPEAT = "hints_repeat"
    SCORES_WRONG = "scores_wrong"
    JUDGE_ONE_VALUE = "judge_one_value"
    TEACHER_IGNORES_HINTS = "teacher_ignores_hints"
    NULL_HINT_NOT_ZERO = "null_hint_not_zero"
    CUSTOM_LOSS_MISSING = "custom_loss_missing"
    COMPUTE_LOSS_MISSING = "compute_loss_missing"
    CUSTOM_LOSS_UNUSABLE = "custom_loss_unusable"
    LOSS_IGNORES_TEACHER = "loss_ignores_teacher"
    LOSS_MASK_ZERO = "loss_mask_zero"
    LAYOUT_DOES_NOT_FIT = "layout_does_not_fit"
    MEMORY_SHORT = "memory_short"
    TRAINER_AWAY = "trainer_away"
    TRAINER_STUCK = "trainer_stuck"
    TRAINING_PAUSED = "training_paused"
    GATE_HOLDS = "gate_holds"
    WEIGHTS_NEVER_PUBLISHED = "weights_never_published"
    ENGINE_BEHIND = "engine_behind"
    ENGINE_AT_BASE = "engine_at_base"
    CACHE_STALE = "cache_stale"
    ADVANTAGES_ALL_ZERO = "advantages_all_zero"
    ADVANTAGES_ONE_SIGN = "advantages_one_sign"
    ADVANTAGES_EXPLODE = "advantages_explode"
    NO_IMPROVEMENT = "no_improvement"
    ENTROPY_FALLS = "entropy_falls"
    LENGTH_COLLAPSES = "length_collapses"
    ENGINE_DRIFT = "engine_drift"
    NO_TRAFFIC = "no_traffic"
    NO_SAMPLES = "no_samples"
    TURNS_NOT_CONTINUED = "turns_not_continued"
    ALL_SIDE_CALLS = "all_side_calls"
    TIMEOUTS_AS_NEXT_STATE = "timeouts_as_next_state"
    SESSION_TIMEOUT_SHORT = "session_timeout_short"
    TURNS_DROPPED = "turns_dropped"
    SAMPLES_STALE = "samples_stale"


EXPLANATIONS: dict[Cause, Explanation] = {cause: BY_ID[cause] for cause in Cause}
