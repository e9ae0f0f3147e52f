"""What can be wrong, by a name that stays. Owns the ids and, for each, what it means and what to do about it.

The ids are part of the command's interface (`--json`): one is never renamed, and never given to something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Probable causes, in the order of the chain."""

    CONFIGURATION_INVALID = "configuration_invalid"
    HINTS_SWITCHED_OFF = "hints_switched_off"
    UNHINTED_TURNS_TRAINED = "unhinted_turns_trained"
    EQUAL_VOTES = "equal_votes"
    STUDENT_UNREADABLE = "student_unreadable"
    REDIS_AWAY = "redis_away"
    REDIS_MAY_EVICT = "redis_may_evict"
    REDIS_NOT_DURABLE = "redis_not_durable"
    DEAD_LETTERS = "dead_letters"
    PROXY_AWAY = "proxy_away"
    POLICY_ENGINE_AWAY = "policy_engine_away"
    CAPTURE_UNPROVEN = "capture_unproven"
    SAMPLING_DEFAULTS_UNPROVEN = "sampling_defaults_unproven"
    PRM_ENGINE_AWAY = "prm_engine_away"
    PRM_GIVES_NO_LOGPROBS = "prm_gives_no_logprobs"
    PRM_SHIFTED = "prm_shifted"
    TOKENIZER_DIFFERS = "tokenizer_differs"
    TOP_K_ABOVE_LIMIT = "top_k_above_limit"
    TEACHER_MODEL_MISSING = "teacher_model_missing"
    PRM_ADDRESS_WRONG = "prm_address_wrong"
    PRM_SERVICE_AWAY = "prm_service_away"
    PRM_KEY_WRONG = "prm_key_wrong"
    JUDGE_ENGINE_AWAY = "judge_engine_away"
    JUDGE_KEY_WRONG = "judge_key_wrong"
    JUDGE_MODEL_MISSING = "judge_model_missing"
    VOTES_CUT = "votes_cut"
    VOTES_FAIL = "votes_fail"
    NO_HINTS = "no_hints"
    HINTS_NOT_CONCRETE = "hints_not_concrete"
    SCORES_WRONG = "scores_wrong"
    TEACHER_IGNORES_HINTS = "teacher_ignores_hints"
    NULL_HINT_NOT_ZERO = "null_hint_not_zero"
    CUSTOM_LOSS_UNUSABLE = "custom_loss_unusable"
    LAYOUT_DOES_NOT_FIT = "layout_does_not_fit"
    MEMORY_SHORT = "memory_short"
    TRAINER_AWAY = "trainer_away"
    TRAINER_STUCK = "trainer_stuck"
    TRAINING_PAUSED = "training_paused"
    WEIGHTS_NEVER_PUBLISHED = "weights_never_published"
    ENGINE_BEHIND = "engine_behind"
    ADVANTAGES_ALL_ZERO = "advantages_all_zero"
    ADVANTAGES_ONE_SIGN = "advantages_one_sign"
    ADVANTAGES_EXPLODE = "advantages_explode"
    ENGINE_DRIFT = "engine_drift"
    NO_TRAFFIC = "no_traffic"
    TURNS_NOT_CONTINUED = "turns_not_continued"
    SESSION_TIMEOUT_SHORT = "session_timeout_short"
    TURNS_DROPPED = "turns_dropped"
    SAMPLES_STALE = "samples_stale"


@dataclass(frozen=True, slots=True)
class Explanation:
    """``cause``: what this usually comes from. ``fix``: what to change. Both complete sentences."""

    cause: str
    fix: str


EXPLANATIONS: dict[Cause, Explanation] = {
    Cause.CONFIGURATION_INVALID: Explanation(
        "The configuration cannot be used as it is.", "Change the key that the message names."
    ),
    Cause.HINTS_SWITCHED_OFF: Explanation(
        "The method learns from hints, and opd.enable_hint_extraction is false: no turn will ever have one.",
        "Set opd.enable_hint_extraction = true, or advantage.estimator = 'grpo' to learn from scores alone.",
    ),
    Cause.UNHINTED_TURNS_TRAINED: Explanation(
        "Turns without a hint are trained, too. Teacher and student see the same prompt there, so their advantage is "
        "about 0 and they dilute the batch.",
        "Set opd.drop_sample_without_hint = true unless that is meant.",
    ),
    Cause.EQUAL_VOTES: Explanation(
        "Votes at temperature 0 are the same vote several times; it is asked once.",
        "Raise opd.judge_temperature and prm.hint_temperature to about 0.7, or set opd.judge_vote_count = 1.",
    ),
    Cause.STUDENT_UNREADABLE: Explanation(
        "The student's directory is missing, is no Hugging Face model, or is of a kind that is not supported.",
        "Correct model.student_model_path (and model.tokenizer_path) as the message says.",
    ),
    Cause.REDIS_AWAY: Explanation(
        "No Redis answers at redis.url, or it wants another password.",
        "Start it, or correct redis.url (HINTLOOP_REDIS__URL).",
    ),
    Cause.REDIS_MAY_EVICT: Explanation(
        "Redis may throw turns away when its memory is full.",
        "Set `maxmemory-policy noeviction` in its configuration.",
    ),
    Cause.REDIS_NOT_DURABLE: Explanation(
        "Redis does not write its changes to disk as they come: a crash loses turns.",
        "Set `appendonly yes` (and `appendfsync always`, or `everysec` if a second's turns may be lost).",
    ),
    Cause.DEAD_LETTERS: Explanation(
        "Messages failed repeatedly and were set aside.",
        "`hintloop dead list` shows the errors; mend the cause, then `hintloop dead requeue --all`.",
    ),
    Cause.PROXY_AWAY: Explanation(
        "No rollout proxy answers at proxy.host and proxy.port.", "Start the stack (`hintloop up`), or correct them."
    ),
    Cause.POLICY_ENGINE_AWAY: Explanation(
        "The proxy cannot reach this policy engine: it does not run, is still loading, or the address is wrong.",
        "Look into the engine's log; correct policy.engines, or rollout.sglang_host and sglang_port.",
    ),
    Cause.CAPTURE_UNPROVEN: Explanation(
        "The engine answers, but could not be shown to give exact token ids and log-probabilities. Its answers are "
        "served and not trained.",
        "Set rollout.engine to what really runs there, and start it with the flags that docs/apis.md lists.",
    ),
    Cause.SAMPLING_DEFAULTS_UNPROVEN: Explanation(
        "The engine may fill sampling parameters that agents leave out by its model's own defaults, so the "
        "distribution sampled from is not known. Such answers are trained without importance weights.",
        "Start SGLang with `--sampling-defaults openai`, vLLM with `--generation-config vllm`.",
    ),
    Cause.PRM_ENGINE_AWAY: Explanation(
        "No PRM engine answers at prm.prm_url.", "Start it, or correct prm.prm_url (and prm.prm_api_key)."
    ),
    Cause.PRM_GIVES_NO_LOGPROBS: Explanation(
        "The PRM engine gives no log-probabilities of tokens that it did not generate itself. Most chat services do "
        "not. It can judge, but not teach.",
        "Give the teacher an engine that can, by prm.teacher_url: SGLang, vLLM, or a completions API with echo.",
    ),
    Cause.PRM_SHIFTED: Explanation(
        "The PRM engine's log-probabilities belong to other tokens than the ones asked for.",
        "Set prm.engine to what really runs there; a gateway between may change requests: leave it out.",
    ),
    Cause.TOKENIZER_DIFFERS: Explanation(
        "Teacher and student do not share vocabulary and special ids: ids of one mean other text to the other.",
        "Take a teacher of the student's family; prm.teacher_tokenizer_path proves it where the engine cannot.",
    ),
    Cause.TOP_K_ABOVE_LIMIT: Explanation(
        "The method needs more candidates a token than the PRM engine gives.",
        "Lower topk_opd.top_k, or raise the engine's limit (vLLM: `--max-logprobs`).",
    ),
    Cause.TEACHER_MODEL_MISSING: Explanation(
        "The PRM engine does not serve the teacher's model.",
        "Set prm.teacher_model to one that the message lists.",
    ),
    Cause.PRM_ADDRESS_WRONG: Explanation(
        "Something answers at prm.prm_url that is no inference engine.",
        "Give the engine's base address, without a path or with /v1.",
    ),
    Cause.PRM_SERVICE_AWAY: Explanation(
        "Judge and teacher do not answer at prm.host and prm.port.",
        "Start them (`hintloop up`); their log says why they ended, if they did.",
    ),
    Cause.PRM_KEY_WRONG: Explanation(
        "Judge and teacher ask for a key (prm.api_keys), and prm.caller_key is missing or is none of them.",
        "Set HINTLOOP_PRM__CALLER_KEY to a key of prm.api_keys.",
    ),
    Cause.JUDGE_ENGINE_AWAY: Explanation(
        "The judge's model cannot be reached, or refuses what is asked.",
        "Correct prm.judge_url (else prm.prm_url), or wait until it has loaded.",
    ),
    Cause.JUDGE_KEY_WRONG: Explanation(
        "The judge's model refuses our key.", "Set HINTLOOP_PRM__JUDGE_API_KEY (else HINTLOOP_PRM__PRM_API_KEY)."
    ),
    Cause.JUDGE_MODEL_MISSING: Explanation(
        "The judge's model is not served at its address.", "Set prm.judge_model to a model that is served there."
    ),
    Cause.VOTES_CUT: Explanation(
        "The judge's replies are cut by the token limit before they say anything; a cut vote counts for nothing.",
        "Raise prm.hint_max_tokens; a model that reasons first needs 1,000 or more.",
    ),
    Cause.VOTES_FAIL: Explanation(
        "The judge's replies cannot be read as votes: the model does not keep to the form of reply.",
        "Take a larger judge model (prm.judge_model), or prm.judge_backend = 'rules_then_llm'.",
    ),
    Cause.NO_HINTS: Explanation(
        "The judge gives no hint even where the user says plainly what to do otherwise. Every turn drops as `no_hint`.",
        "Take a larger judge model, look at prm.judge_prompt_dir, or widen opd.min_hint_length to max_hint_length.",
    ),
    Cause.HINTS_NOT_CONCRETE: Explanation(
        "Hints are platitudes, or longer than three sentences. They shift the teacher little, or everywhere.",
        "Take a larger judge model, or say in the prompt (prm.judge_prompt_dir) what a good hint is.",
    ),
    Cause.SCORES_WRONG: Explanation(
        "The judge scores a plain complaint as good, or plain praise as bad.",
        "Take a larger judge model, or prm.judge_backend = 'rules_then_llm'.",
    ),
    Cause.TEACHER_IGNORES_HINTS: Explanation(
        "The teacher finds what a hint asks for no likelier with the hint than without: it has nothing to teach.",
        "Take a larger teacher; look at opd.hint_format and opd.hint_place.",
    ),
    Cause.NULL_HINT_NOT_ZERO: Explanation(
        "Without a hint and with equal weights teacher and student should agree, and they do not: the advantage holds "
        "something else than the hint (another temperature, dtype, template or stale cache).",
        "Run both engines in one dtype; start vLLM policies with --logprobs-mode processed_logprobs; flush caches.",
    ),
    Cause.CUSTOM_LOSS_UNUSABLE: Explanation(
        "The custom loss is not found, or is none.", "Correct the path or the function, as the message says."
    ),
    Cause.LAYOUT_DOES_NOT_FIT: Explanation(
        "The model cannot be divided as configured.", "Change the parallel sizes in [training], as the message says."
    ),
    Cause.MEMORY_SHORT: Explanation(
        "Training as configured takes more memory than is free: it would end at the first step, or at a long sample.",
        "Turn down what `python -m hintloop_trainer --estimate` lists; the most effective change is shown above.",
    ),
    Cause.TRAINER_AWAY: Explanation(
        "No trainer has reported to this deployment's Redis, or it ended.",
        "Start it (`hintloop up`); its log says why it ended, if it did.",
    ),
    Cause.TRAINER_STUCK: Explanation(
        "The trainer waits for something that keeps failing.", "The detail names what; mend that."
    ),
    Cause.TRAINING_PAUSED: Explanation("Training was paused by a rollback.", "`hintloop resume` goes on."),
    Cause.WEIGHTS_NEVER_PUBLISHED: Explanation(
        "Steps were made, and no version was ever released: agents still get the first weights.",
        "Look at the trainer's phase and detail, and whether publishing.weights_dir is mounted at the engines.",
    ),
    Cause.ENGINE_BEHIND: Explanation(
        "An engine serves other weights than the released ones: it was restarted, or an update failed there.",
        "The reconciler brings it back within seconds; if it does not, the trainer's log names the step that fails.",
    ),
    Cause.ADVANTAGES_ALL_ZERO: Explanation(
        "Teacher and student agree about every token: hints are empty, do not reach the teacher, or it ignores them.",
        "Look at the judge's and the teacher's checks above; opd.drop_sample_without_hint = false does this, too.",
    ),
    Cause.ADVANTAGES_ONE_SIGN: Explanation(
        "All advantages have one sign: the method pushes every token the same way, whatever the hint says.",
        "Under binary RL the judge gives one value only: look at its scores. Else teacher and student are compared at "
        "different temperatures or templates: run the null-hint control.",
    ),
    Cause.ADVANTAGES_EXPLODE: Explanation(
        "Differences between teacher and student are too large to come from a hint (prompts that differ, a shifted "
        "teacher, a student that has drifted).",
        "Look at the null-hint control and the teacher's alignment; opd.advantage_clip only hides it.",
    ),
    Cause.ENGINE_DRIFT: Explanation(
        "Engine and trainer disagree about the same tokens under the same weights.",
        "Use one dtype for both; after an update the cache may be stale: the probe's difference tells.",
    ),
    Cause.NO_TRAFFIC: Explanation("No request came through the proxy yet.", "Point the agent's base URL at the proxy."),
    Cause.TURNS_NOT_CONTINUED: Explanation(
        "Requests come, but no answer is ever followed by a next request of the same conversation.",
        "The agent must send its history back. Single-shot agents can give POST /v1/feedback instead.",
    ),
    Cause.SESSION_TIMEOUT_SHORT: Explanation(
        "Most turns end as `no_next_state`: users or tools answer later than rollout.session_timeout_sec.",
        "Raise rollout.session_timeout_sec above the longest pause between an answer and the next request.",
    ),
    Cause.TURNS_DROPPED: Explanation(
        "Most turns are lost at one place, for one reason.", "The reason says why; docs and README explain each."
    ),
    Cause.SAMPLES_STALE: Explanation(
        "Samples are too old when they could be trained: turns come faster than they are trained.",
        "Raise training.max_staleness_steps, lower rollout.rollout_batch_size, or add judge and teacher replicas.",
    ),
}
