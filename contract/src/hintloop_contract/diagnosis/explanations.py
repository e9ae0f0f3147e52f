"""The words for each cause: what it usually comes from, and what to change."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Explanation:
    """``cause``: what this usually comes from. ``fix``: what to change. Both complete sentences."""

    cause: str
    fix: str


BY_ID = {
    "configuration_invalid": Explanation(
        "The configuration cannot be used as it is.",
        "Change the key that the message names.",
    ),
    "generated_scoring": Explanation(
        "opd.teacher_scoring_mode is 'generate': tokens that the teacher samples are not the student's, so their "
        "log-probabilities say nothing about what the student did.",
        "Set opd.teacher_scoring_mode = 'forced'.",
    ),
    "kl_in_opd": Explanation(
        "training.kl_coef is set under on-policy distillation, whose teacher term already is a KL: the second one "
        "pulls against the hint.",
        "Set training.kl_coef = 0, or training.force_kl = true if that is meant.",
    ),
    "learning_rate_zero": Explanation(
        "The learning rate is 0 or next to it: steps are made, and the weights stay what they are.",
        "Set training.learning_rate (1e-6 for whole models in bfloat16, 1e-5 to 1e-4 for small ones and LoRA).",
    ),
    "hints_switched_off": Explanation(
        "The method learns from hints, and opd.enable_hint_extraction is false: no turn will ever have one.",
        "Set opd.enable_hint_extraction = true, or advantage.estimator = 'grpo' to learn from scores alone.",
    ),
    "unhinted_turns_trained": Explanation(
        "Turns without a hint are trained, too. Teacher and student see the same prompt there, so their advantage "
        "is about 0 and they dilute the batch.",
        "Set opd.drop_sample_without_hint = true unless that is meant.",
    ),
    "equal_votes": Explanation(
        "Votes at temperature 0 are the same vote several times; it is asked once.",
        "Raise opd.judge_temperature and prm.hint_temperature to about 0.7, or set opd.judge_vote_count = 1.",
    ),
    "student_unreadable": Explanation(
        "The student's directory is missing, is no Hugging Face model, or is of a kind that is not supported.",
        "Correct model.student_model_path (and model.tokenizer_path) as the message says.",
    ),
    "redis_away": Explanation(
        "No Redis answers at redis.url, or it wants another password.",
        "Start it, or correct redis.url (HINTLOOP_REDIS__URL).",
    ),
    "redis_may_evict": Explanation(
        "Redis may throw turns away when its memory is full.",
        "Set `maxmemory-policy noeviction` in its configuration.",
    ),
    "redis_not_durable": Explanation(
        "Redis does not write its changes to disk as they come: a crash loses turns.",
        "Set `appendonly yes` (and `appendfsync always`, or `everysec` if a second's turns may be lost).",
    ),
    "redis_full": Explanation(
        "A bound of Redis is reached (maxmemory, or proxy.max_captures captures that no linker has settled): what "
        "comes in is refused.",
        "Raise maxmemory or proxy.max_captures; look why the streams are not read: is the linker, the judge or the "
        "trainer away?",
    ),
    "dead_letters": Explanation(
        "Messages failed repeatedly and were set aside.",
        "`hintloop dead list` shows the errors; mend the cause, then `hintloop dead requeue --all`.",
    ),
    "proxy_away": Explanation(
        "No rollout proxy answers at proxy.host and proxy.port.",
        "Start the stack (`hintloop up`), or correct them.",
    ),
    "policy_engine_away": Explanation(
        "The proxy cannot reach this policy engine: it does not run, is still loading, or the address is wrong.",
        "Look into the engine's log; correct policy.engines, or rollout.sglang_host and sglang_port.",
    ),
    "capture_unproven": Explanation(
        "The engine answers, but could not be shown to give exact token ids and log-probabilities. Its answers are "
        "served and not trained.",
        "Set rollout.engine to what really runs there, and start it with the flags that docs/apis.md lists.",
    ),
    "sampling_defaults_unproven": Explanation(
        "The engine may fill sampling parameters that agents leave out by its model's own defaults, so the "
        "distribution sampled from is not known. Such answers are trained without importance weights.",
        "Start SGLang with `--sampling-defaults openai`, vLLM with `--generation-config vllm`.",
    ),
    "rendering_differs": Explanation(
        "The policy engine renders captured messages to other ids than it was served with: another chat template, a"
        " system text or options that are added on the way.",
        "Give the engine one chat template for all its routes; leave gateways out that change requests or answers.",
    ),
    "prm_engine_away": Explanation(
        "No PRM engine answers at prm.prm_url.",
        "Start it, or correct prm.prm_url (and prm.prm_api_key).",
    ),
    "prm_engine_key_wrong": Explanation(
        "The PRM engine refuses our key.",
        "Set HINTLOOP_PRM__PRM_API_KEY to a key that the engine takes.",
    ),
    "prm_gives_no_logprobs": Explanation(
        "The PRM engine gives no log-probabilities of tokens that it did not generate itself. Most chat services do"
        " not. It can judge, but not teach.",
        "Give the teacher an engine that can, by prm.teacher_url: SGLang, vLLM, or a completions API with echo.",
    ),
    "prm_shifted": Explanation(
        "The PRM engine's log-probabilities belong to other tokens than the ones asked for.",
        "Set prm.engine to what really runs there; a gateway between may change requests: leave it out.",
    ),
    "tokenizer_differs": Explanation(
        "Teacher and student do not share vocabulary and special ids: ids of one mean other text to the other.",
        "Take a teacher of the student's family; prm.teacher_tokenizer_path proves it where the engine cannot.",
    ),
    "top_k_above_limit": Explanation(
        "The method needs more candidates a token than the PRM engine gives.",
        "Lower topk_opd.top_k, or raise the engine's limit (vLLM: `--max-logprobs`).",
    ),
    "teacher_model_missing": Explanation(
        "The PRM engine does not serve the teacher's model.",
        "Set prm.teacher_model to one that the message lists.",
    ),
    "prm_address_wrong": Explanation(
        "Something answers at prm.prm_url that is no inference engine.",
        "Give the engine's base address, without a path or with /v1.",
    ),
    "teacher_context_short": Explanation(
        "The teacher's engine takes fewer tokens than samples may have, or reads the end of a long prompt alone: "
        "long turns drop as `too_long`, or are taught without their beginning.",
        "Start the PRM engine with a context of at least model.max_seq_len and 256 tokens more for the hint (vLLM: "
        "`--max-model-len`, SGLang: `--context-length`), or lower model.max_seq_len.",
    ),
    "temperature_differs": Explanation(
        "Teacher and student are compared at different temperatures: every difference is scaled, with a hint or "
        "without.",
        "Have the engine give log-probabilities at temperature 1 (vLLM as PRM engine: no --logprobs-mode of "
        "processed ones), and leave out gateways that set a temperature.",
    ),
    "prm_service_away": Explanation(
        "Judge and teacher do not answer at prm.host and prm.port.",
        "Start them (`hintloop up`); their log says why they ended, if they did.",
    ),
    "prm_key_wrong": Explanation(
        "Judge and teacher ask for a key (prm.api_keys), and prm.caller_key is missing or is none of them.",
        "Set HINTLOOP_PRM__CALLER_KEY to a key of prm.api_keys.",
    ),
    "judge_engine_away": Explanation(
        "The judge's model cannot be reached, or refuses what is asked.",
        "Correct prm.judge_url (else prm.prm_url), or wait until it has loaded.",
    ),
    "judge_key_wrong": Explanation(
        "The judge's model refuses our key.",
        "Set HINTLOOP_PRM__JUDGE_API_KEY (else HINTLOOP_PRM__PRM_API_KEY).",
    ),
    "judge_model_missing": Explanation(
        "The judge's model is not served at its address.",
        "Set prm.judge_model to a model that is served there.",
    ),
    "votes_cut": Explanation(
        "The judge's replies are cut by the token limit before they say anything; a cut vote counts for nothing.",
        "Raise prm.hint_max_tokens; a model that reasons first needs 1,000 or more.",
    ),
    "votes_fail": Explanation(
        "The judge's replies cannot be read as votes: the model does not keep to the form of reply.",
        "Take a larger judge model (prm.judge_model), or prm.judge_backend = 'rules_then_llm'.",
    ),
    "no_hints": Explanation(
        "The judge gives no hint even where the user says plainly what to do otherwise. Every turn drops as `no_hint`.",
        "Take a larger judge model, look at prm.judge_prompt_dir, or widen opd.min_hint_length to max_hint_length.",
    ),
    "hints_not_concrete": Explanation(
        "Hints are platitudes, or longer than three sentences. They shift the teacher little, or everywhere.",
        "Take a larger judge model, or say in the prompt (prm.judge_prompt_dir) what a good hint is.",
    ),
    "hints_repeat": Explanation(
        "The judge gives nearly every turn the same hint, whatever followed: its model copies an example, or a "
        "cache stands between.",
        "Look at prm.judge_prompt_dir and prm.hint_temperature; take a larger judge model.",
    ),
    "scores_wrong": Explanation(
        "The judge scores a plain complaint as good, or plain praise as bad.",
        "Take a larger judge model, or prm.judge_backend = 'rules_then_llm'.",
    ),
    "judge_one_value": Explanation(
        "The judge gives every turn the same score: nothing tells good answers from bad ones.",
        "Look at the judge's station above, and at prm.judge_prompt_dir; take a larger judge model, or "
        "prm.judge_backend = 'rules_then_llm'.",
    ),
    "teacher_ignores_hints": Explanation(
        "The teacher finds what a hint asks for no likelier with the hint than without: it has nothing to teach.",
        "Take a larger teacher; look at opd.hint_format and opd.hint_place.",
    ),
    "null_hint_not_zero": Explanation(
        "Without a hint and with equal weights teacher and student should agree, and they do not: the advantage "
        "holds something else than the hint (another dtype or template, a gateway between).",
        "Run both engines in one dtype; start vLLM policies with --logprobs-mode processed_logprobs.",
    ),
    "custom_loss_missing": Explanation(
        "The file of the custom loss is not there.",
        "Correct advantage.custom_loss_function_path (or training.custom_loss_path); the message lists where it was"
        " looked for.",
    ),
    "compute_loss_missing": Explanation(
        "The file of the custom loss defines no usable compute_loss.",
        "Define `def compute_loss(inputs: LossInputs) -> TokenLosses` in it, as the message says.",
    ),
    "custom_loss_unusable": Explanation(
        "The custom loss cannot be imported, or does not say what it requires.",
        "Correct the function, as the message says.",
    ),
    "loss_ignores_teacher": Explanation(
        "The loss is the same whatever the teacher says: hints are paid for and never used.",
        "Compute it from advantages_N, teacher_logprobs_N or teacher_candidates_NK, whichever its REQUIRES asks for.",
    ),
    "loss_mask_zero": Explanation(
        "The loss has no gradient for any token: everything is masked out, or multiplied by 0.",
        "Look at the masks and weights in the custom loss, and at training.tis_floor and tis_cap; tokens_trained "
        "and grad_norm must be above 0.",
    ),
    "layout_does_not_fit": Explanation(
        "The model cannot be divided as configured.",
        "Change the parallel sizes in [training], as the message says.",
    ),
    "memory_short": Explanation(
        "Training as configured takes more memory than is free: it would end at the first step, or at a long sample.",
        "Turn down what `python -m hintloop_trainer --estimate` lists; the most effective change is shown above.",
    ),
    "trainer_away": Explanation(
        "No trainer has reported to this deployment's Redis, or it ended.",
        "Start it (`hintloop up`); its log says why it ended, if it did.",
    ),
    "trainer_stuck": Explanation(
        "The trainer waits for something that keeps failing.",
        "The detail names what; mend that.",
    ),
    "training_paused": Explanation(
        "Training was paused by a rollback.",
        "`hintloop resume` goes on.",
    ),
    "gate_holds": Explanation(
        "The release gate holds the new weights back: they answer worse than the released ones.",
        "The trainer's status says by which measure; lower training.learning_rate, raise training.lr_warmup_steps if"
        " it is a run's first steps, or widen the margin in [gate] if that change is wanted.",
    ),
    "weights_never_published": Explanation(
        "Steps are made, and their weights do not reach the engines: agents still get earlier ones.",
        "Look at the trainer's phase and detail, and whether publishing.weights_dir is mounted at the engines.",
    ),
    "engine_behind": Explanation(
        "An engine serves other weights than the released ones: an update did not reach it, or failed there.",
        "The reconciler brings it back within seconds; if it does not, the trainer's log names the step that fails.",
    ),
    "engine_at_base": Explanation(
        "An engine serves the student's first weights, not the released ones: it was started anew, and nobody has "
        "brought it up to date.",
        "See that the trainer runs (its reconciler brings engines back), and start engines from "
        "publishing.weights_dir/current.",
    ),
    "cache_stale": Explanation(
        "An engine answers from keys and values that older weights computed: its prefix cache was not flushed at an"
        " update.",
        "Flush it (vLLM: POST /reset_prefix_cache?reset_running_requests=true, SGLang: POST /flush_cache); leave "
        "out gateways that answer for the engine.",
    ),
    "advantages_all_zero": Explanation(
        "Teacher and student agree about every token: hints are empty, do not reach the teacher, or it ignores them.",
        "Look at the judge's and the teacher's checks above; opd.drop_sample_without_hint = false does this, too.",
    ),
    "advantages_one_sign": Explanation(
        "All advantages have one sign: the method pushes every token the same way, whatever the hint says.",
        "Under binary RL the judge gives one value only: look at its scores. Else teacher and student are compared "
        "at different temperatures or templates: run the null-hint control.",
    ),
    "advantages_explode": Explanation(
        "Differences between teacher and student are too large to come from a hint (prompts that differ, a shifted "
        "teacher, a student that has drifted).",
        "Look at the null-hint control and the teacher's alignment; opd.advantage_clip only hides it.",
    ),
    "no_improvement": Explanation(
        "Thirty or more steps were made, and what the method moves (teacher minus student, the KL, or the score) did "
        "not move.",
        "Look at the judge's hints and the null-hint control above; raise training.learning_rate carefully, and "
        "give it more steps.",
    ),
    "entropy_falls": Explanation(
        "The student's entropy falls: its answers become all alike, and there is soon nothing left to learn from.",
        "Lower training.learning_rate, set training.entropy_coef (0.001 to 0.01), or go back with `hintloop rollback`.",
    ),
    "length_collapses": Explanation(
        "Answers become very short: the student learns to stop instead of to answer.",
        "Look at what the hints ask for; lower training.learning_rate, or go back with `hintloop rollback`.",
    ),
    "engine_drift": Explanation(
        "Engine and trainer disagree about the same tokens under the same weights.",
        "Use one dtype for both; after an update the cache may be stale: the probe's difference tells.",
    ),
    "no_traffic": Explanation(
        "No request came through the proxy yet.",
        "Point the agent's base URL at the proxy.",
    ),
    "no_samples": Explanation(
        "Turns come in, and none of them becomes a sample.",
        "The drop reasons in the evidence say where they end; `hintloop status` shows the streams and who reads them.",
    ),
    "turns_not_continued": Explanation(
        "Requests come, but no answer is ever followed by a next request of the same conversation.",
        "The agent must send its history back. Single-shot agents can give POST /v1/feedback instead.",
    ),
    "all_side_calls": Explanation(
        "Every request is read as a side call (marked X-Turn-Type: side, a probe of one token, a title or summary):"
        " none is a turn of a conversation.",
        "Leave the mark out for requests of the main line; `hintloop link FILE` shows how traffic is read "
        "(docs/linking.md).",
    ),
    "timeouts_as_next_state": Explanation(
        "What follows the answers is a timeout or an interruption of the agent's own, not a reaction: such turns "
        "are never judged.",
        "Raise the agent's timeout above the time of an answer; do not send timeouts as messages of the user.",
    ),
    "session_timeout_short": Explanation(
        "Most turns end as `no_next_state`: users or tools answer later than rollout.session_timeout_sec.",
        "Raise rollout.session_timeout_sec above the longest pause between an answer and the next request.",
    ),
    "turns_dropped": Explanation(
        "Most turns are lost at one place, for one reason.",
        "The reason says why; docs and README explain each.",
    ),
    "samples_stale": Explanation(
        "Samples are too old when they could be trained: turns come faster than they are trained.",
        "Raise training.max_staleness_steps, lower rollout.rollout_batch_size, or add judge and teacher replicas.",
    ),
}
