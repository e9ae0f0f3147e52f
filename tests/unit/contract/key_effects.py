"""Which test sees what each configuration key does. ``test_key_effects`` checks that it is whole and true."""

from __future__ import annotations

#: Key to the test, below ``tests/``, that fails where the key has no effect: it changes the value and looks at what
#: the service does, not at what the configuration says.
OBSERVED = {
    "model.student_model_path": "unit/teacher/test_main.py::test_a_student_that_is_not_there_ends_in_a_message",
    "model.tokenizer_path": "unit/teacher/test_key_effects.py::test_the_tokenizer_may_lie_in_a_directory_of_its_own",
    "model.dtype": "unit/teacher/test_control.py::test_the_tolerance_is_that_of_the_engines_dtype",
    "model.max_seq_len": "unit/teacher/test_teaching.py::test_too_long_for_the_trainer",
    "rollout.engine": "unit/rollout_proxy/test_serving.py::test_raw_scores_do_not_show_what_was_sampled_from",
    "rollout.sglang_host": "unit/rollout_proxy/test_key_effects.py"
    "::test_an_engine_of_host_and_port_is_asked_where_no_engines_are_named",
    "rollout.sglang_port": "unit/rollout_proxy/test_key_effects.py"
    "::test_an_engine_of_host_and_port_is_asked_where_no_engines_are_named",
    "rollout.rollout_batch_size": "integration/trainer/test_key_effects.py::test_training_waits_for_a_whole_collection",
    "rollout.max_new_tokens": "unit/rollout_proxy/test_serving.py::test_sampling_defaults",
    "rollout.temperature": "unit/rollout_proxy/test_serving.py::test_sampling_defaults",
    "rollout.top_p": "unit/rollout_proxy/test_key_effects.py::test_top_p_is_filled_in_where_it_is_left_out",
    "rollout.apply_sampling_defaults": "unit/rollout_proxy/test_serving.py::test_sampling_defaults",
    "rollout.session_timeout_sec": "unit/rollout_proxy/test_linker_task.py"
    "::test_what_came_after_the_timeout_is_counted_and_told",
    "rollout.max_turns_per_session": "unit/rollout_proxy/test_key_effects.py"
    "::test_a_session_is_cut_into_segments_of_the_configured_turns",
    "training.ppo_clip_epsilon": "unit/trainer/test_key_effects.py::test_each_key_of_the_loss_moves_it",
    "training.ppo_clip_epsilon_high": "unit/trainer/test_key_effects.py::test_each_key_of_the_loss_moves_it",
    "training.kl_coef": "unit/trainer/test_key_effects.py::test_each_key_of_the_loss_moves_it",
    "training.kl_estimator": "unit/trainer/test_key_effects.py::test_each_key_of_the_loss_moves_it",
    "training.force_kl": "unit/trainer/test_objective.py"
    "::test_a_reference_kl_beside_a_loss_that_distils_is_refused_unless_forced",
    "training.entropy_coef": "unit/trainer/test_key_effects.py::test_each_key_of_the_loss_moves_it",
    "training.loss_reduction": "unit/trainer/test_key_effects.py::test_each_key_of_the_loss_moves_it",
    "training.is_correction": "unit/trainer/test_key_effects.py::test_each_key_of_the_loss_moves_it",
    "training.tis_cap": "unit/trainer/test_key_effects.py::test_each_key_of_the_loss_moves_it",
    "training.tis_floor": "unit/trainer/test_key_effects.py::test_each_key_of_the_loss_moves_it",
    "training.custom_loss_path": "unit/trainer/test_objective.py"
    "::test_a_custom_loss_may_copy_its_inputs_and_compute_in_float64",
    "training.tensor_model_parallel_size": "unit/trainer/test_parallel.py"
    "::test_the_configured_sizes_need_so_many_processes",
    "training.pipeline_model_parallel_size": "unit/trainer/test_parallel.py"
    "::test_the_configured_sizes_need_so_many_processes",
    "training.context_parallel_size": "unit/trainer/test_parallel.py::test_the_configured_sizes_need_so_many_processes",
    "training.expert_model_parallel_size": "unit/trainer/test_parallel.py"
    "::test_the_configured_sizes_need_so_many_processes",
    "training.use_distributed_optimizer": "unit/trainer/test_memory.py"
    "::test_every_key_that_takes_or_saves_memory_shows",
    "training.overlap_grad_reduce": "unit/trainer/test_optimizer.py"
    "::test_what_stands_behind_a_padded_bucket_is_saved_as_it_is",
    "training.recompute_granularity": "unit/trainer/test_memory.py::test_recomputation_keeps_as_little_as_said",
    "training.recompute_method": "unit/trainer/test_memory.py::test_recomputation_keeps_as_little_as_said",
    "training.recompute_num_layers": "unit/trainer/test_memory.py::test_recomputation_keeps_as_little_as_said",
    "training.train_batch_size": "unit/rollout_proxy/test_linker_task.py::test_backpressure_past_the_limit",
    "training.micro_batch_size": "unit/trainer/test_work.py::test_a_step_says_what_it_computed",
    "training.micro_batch_tokens": "unit/trainer/test_memory.py"
    "::test_micro_batches_by_tokens_are_as_large_as_their_budget",
    "training.packing": "unit/trainer/test_work.py::test_a_step_says_what_it_computed",
    "training.share_prefixes": "unit/trainer/test_chains.py::test_what_was_shared_is_told",
    "training.num_epochs": "integration/trainer/test_key_effects.py::test_a_collection_is_passed_over_so_often",
    "training.learning_rate": "unit/trainer/test_learner.py::test_the_first_adamw_step_is_the_learning_rate",
    "training.lr_warmup_steps": "unit/trainer/test_learner.py::test_the_learning_rate_rises_over_the_first_steps",
    "training.weight_decay": "unit/trainer/test_learner.py::test_decay_acts_on_matrices_alone",
    "training.adam_beta1": "integration/trainer/test_faults.py::test_the_configured_optimizer_holds_after_a_resume",
    "training.adam_beta2": "integration/trainer/test_faults.py::test_the_configured_optimizer_holds_after_a_resume",
    "training.grad_clip": "unit/trainer/test_learner.py::test_loss_and_gradients_equal_autograd_over_the_whole_batch",
    "training.max_staleness_steps": "unit/rollout_proxy/test_linker_task.py::test_backpressure_past_the_limit",
    "training.allow_mixed_version": "unit/rollout_proxy/test_linker_task.py::test_obstacles",
    "training.allow_constrained": "unit/rollout_proxy/test_linker_task.py::test_obstacles",
    "training.save_interval": "integration/trainer/test_disk_faults.py"
    "::test_training_goes_on_while_a_checkpoint_is_written_if_so_configured",
    "training.keep_checkpoints": "integration/trainer/test_key_effects.py::test_the_newest_checkpoints_are_kept",
    "training.async_save": "integration/trainer/test_disk_faults.py"
    "::test_training_goes_on_while_a_checkpoint_is_written_if_so_configured",
    "training.checkpoint_dir": "unit/trainer/test_metrics.py::test_tensorboard_can_be_left_out",
    "training.max_steps": "integration/trainer/test_faults.py::test_no_step_is_made_past_the_limit",
    "training.seed": "unit/trainer/test_lora.py::test_a_is_drawn_as_in_peft_and_b_is_zero",
    "training.memory_check": "unit/trainer/test_memory.py::test_what_does_not_fit_is_said_or_refused",
    "lora.enabled": "unit/trainer/test_memory.py::test_weights_are_counted_one_by_one",
    "lora.rank": "unit/trainer/test_lora.py::test_a_rank_that_is_not_low_is_refused",
    "lora.alpha": "unit/trainer/test_lora.py::test_the_adapter_directory_is_pefts",
    "lora.target_modules": "unit/trainer/test_lora.py::test_the_adapter_directory_is_pefts",
    "lora.publish": "unit/trainer/test_lora.py::test_whole_weights_are_exported_for_engines_that_take_no_adapters",
    "advantage.estimator": "unit/judge/test_judging.py::test_needs_of_the_configuration",
    "advantage.w_rl": "unit/trainer/test_key_effects.py::test_each_key_of_the_loss_moves_it",
    "advantage.w_opd": "unit/trainer/test_key_effects.py::test_each_key_of_the_loss_moves_it",
    "advantage.group_normalisation": "unit/trainer/test_learner.py"
    "::test_scores_of_one_prompt_are_normalised_over_the_whole_step",
    "advantage.group_size": "unit/trainer/test_learner.py"
    "::test_scores_of_one_prompt_are_normalised_over_the_whole_step",
    "advantage.custom_loss_function_path": "unit/judge/test_judging.py::test_needs_of_a_custom_loss",
    "prm.prm_url": "unit/teacher/test_wiring.py::test_the_teacher_may_have_an_address_of_its_own",
    "prm.teacher_url": "unit/teacher/test_wiring.py::test_the_teacher_may_have_an_address_of_its_own",
    "prm.judge_url": "unit/judge/test_llm.py::test_the_judge_has_an_address_and_a_key_of_its_own",
    "prm.prm_api_key": "unit/judge/test_llm.py::test_asks_every_vote_and_falls_back_to_markers",
    "prm.engine": "unit/teacher/test_key_effects.py::test_the_configured_dialect_is_spoken",
    "prm.judge_api_key": "unit/judge/test_llm.py::test_the_judge_has_an_address_and_a_key_of_its_own",
    "prm.judge_backend": "unit/judge/test_composed.py::test_it_says_what_it_is",
    "prm.rules.tools": "unit/judge/test_tool_rules.py::test_names_and_patterns",
    "prm.rules.tools.*.ignore": "unit/judge/test_composed.py::test_ignored_tools_are_shown_to_neither",
    "prm.rules.tools.*.treat_as": "unit/judge/test_tool_rules.py::test_rules_of_a_tool",
    "prm.rules.tools.*.exit_code_pattern": "unit/judge/test_tool_rules.py::test_rules_of_a_tool",
    "prm.rules.tools.*.success_exit_codes": "unit/judge/test_tool_rules.py::test_rules_of_a_tool",
    "prm.rules.tools.*.neutral_exit_codes": "unit/judge/test_tool_rules.py"
    "::test_a_configured_code_outweighs_the_agents_flag",
    "prm.rules.tools.*.failure_patterns": "unit/judge/test_tool_rules.py::test_rules_of_a_tool",
    "prm.rules.tools.*.success_patterns": "unit/judge/test_tool_rules.py::test_rules_of_a_tool",
    "prm.judge_model": "unit/judge/test_llm.py::test_anything_that_shapes_the_votes_asks_anew",
    "prm.judge_prompt_dir": "unit/judge/test_wiring.py::test_prompts_are_taken_from_the_configured_directory",
    "prm.teacher_model": "unit/teacher/test_probe.py::test_the_wanted_model_must_be_served",
    "prm.hint_max_tokens": "unit/judge/test_llm.py::test_asks_every_vote_and_falls_back_to_markers",
    "prm.hint_temperature": "unit/judge/test_app.py::test_prm_says_what_is_asked_and_of_whom",
    "prm.quorum": "unit/judge/test_llm.py::test_so_many_votes_must_succeed",
    "prm.judge_cache_s": "unit/judge/test_wiring.py::test_kept_votes_are_bounded_and_may_be_switched_off",
    "prm.judge_cache_entries": "unit/judge/test_wiring.py::test_kept_votes_are_bounded_and_may_be_switched_off",
    "prm.timeout_s": "unit/teacher/test_key_effects.py::test_a_try_ends_after_its_time",
    "prm.deadline_s": "unit/teacher/test_wiring.py::test_the_deadline_bounds_a_request",
    "prm.circuit_failures": "unit/teacher/test_wiring.py::test_an_engine_is_left_alone_after_the_configured_failures",
    "prm.circuit_open_s": "unit/teacher/test_wiring.py::test_an_engine_is_left_alone_after_the_configured_failures",
    "prm.score_chunk_tokens": "unit/teacher/test_probe.py::test_long_answers_are_scored_in_chunks_that_give_the_same",
    "prm.max_concurrency": "unit/teacher/test_grpc.py::test_a_stream_keeps_no_more_than_max_concurrency_going",
    "prm.host": "unit/teacher/test_key_effects.py::test_the_routes_are_listened_for_at_the_configured_address",
    "prm.port": "unit/teacher/test_main.py::test_a_port_that_is_taken_ends_in_a_message",
    "prm.api_keys": "unit/judge/test_auth.py::test_configured_keys_are_needed_but_for_health_and_metrics",
    "prm.api_keys.*.hash": "unit/judge/test_auth.py::test_configured_keys_are_needed_but_for_health_and_metrics",
    "prm.grpc_port": "unit/teacher/test_main.py::test_a_port_that_is_taken_ends_in_a_message",
    "prm.grpc_address": "unit/trainer/test_null_hint.py::test_the_watch_says_when_the_prm_goes_and_comes",
    "prm.grpc_max_requests": "unit/teacher/test_grpc.py::test_too_many_requests_are_told_to_come_again",
    "prm.grpc_compression": "unit/trainer/test_prm_client.py::test_encoding_is_asked_as_configured",
    "prm.caller_key": "unit/trainer/test_prm_client.py::test_the_caller_s_key_is_presented",
    "prm.teacher_source": "unit/trainer/test_reference.py"
    "::test_the_first_weights_are_held_once_where_the_teacher_has_them",
    "prm.teacher_weights": "unit/trainer/test_forced.py::test_the_teacher_stays_or_follows",
    "prm.ema_decay": "unit/trainer/test_forced.py::test_the_teacher_stays_or_follows",
    "prm.null_hint_control": "integration/trainer/test_prm.py::test_the_null_hint_control_can_be_required",
    "prm.engine_dtype": "unit/teacher/test_control.py::test_the_tolerance_is_that_of_the_engines_dtype",
    "prm.teacher_tokenizer_path": "unit/teacher/test_key_effects.py"
    "::test_a_teachers_tokenizer_that_is_given_must_be_the_students",
    "opd.enable_hint_extraction": "unit/judge/test_tools.py::test_hint_extraction_can_be_off",
    "opd.hint_format": "unit/teacher/test_app.py::test_a_hint_format_with_a_control_token_is_refused",
    "opd.hint_place": "integration/teacher/test_faults.py"
    "::test_the_hint_stands_where_it_is_configured_also_when_tools_spoke_last",
    "opd.min_hint_length": "unit/judge/test_tools.py::test_hint_lengths_are_inclusive",
    "opd.max_hint_length": "unit/judge/test_tools.py::test_hint_lengths_are_inclusive",
    "opd.hint_selection": "unit/judge/test_selection.py::test_which_hint_is_taken_is_configured",
    "opd.allow_quoted_hints": "unit/judge/test_selection.py::test_quotations_can_be_allowed",
    "opd.judge_vote_count": "unit/judge/test_llm.py::test_equal_votes_are_asked_once",
    "opd.judge_temperature": "unit/judge/test_llm.py::test_anything_that_shapes_the_votes_asks_anew",
    "opd.advantage_clip": "unit/trainer/test_key_effects.py::test_each_key_of_the_loss_moves_it",
    "opd.drop_sample_without_hint": "unit/teacher/test_teaching.py::test_no_hint_is_dropped_or_taught_by_the_null_hint",
    "opd.log_teacher_logprobs": "integration/trainer/test_loop.py"
    "::test_what_the_teacher_said_of_every_token_is_kept_when_asked",
    "topk_opd.top_k": "unit/trainer/test_forced.py::test_ids_that_no_tokenizer_has_are_never_chosen",
    "topk_opd.use_teacher_topk": "unit/judge/test_judging.py::test_needs_of_the_configuration",
    "topk_opd.logprobs_dtype": "unit/teacher/test_teaching.py::test_candidates_travel_in_the_configured_dtype",
    "policy.name": "unit/cli/test_app.py::test_status_reads_settings_too",
    "policy.engines": "unit/rollout_proxy/test_serving.py::test_second_engine_takes_over",
    "policy.served_model_name": "unit/rollout_proxy/test_key_effects.py::test_agents_see_the_configured_model_name",
    "policy.api_key": "unit/rollout_proxy/test_serving.py::test_own_keys_end_at_the_proxy",
    "proxy.host": "unit/rollout_proxy/test_key_effects.py::test_the_proxy_listens_where_it_is_told",
    "proxy.port": "unit/rollout_proxy/test_key_effects.py::test_the_proxy_is_at_its_port",
    "proxy.api_keys": "unit/rollout_proxy/test_serving.py::test_own_keys_end_at_the_proxy",
    "proxy.api_keys.*.hash": "unit/rollout_proxy/test_doors.py::test_a_key_tells_tenant_and_credential_and_ends_here",
    "proxy.api_keys.*.tenant": "unit/rollout_proxy/test_doors.py::test_a_key_tells_tenant_and_credential_and_ends_here",
    "proxy.api_keys.*.train": "unit/rollout_proxy/test_doors.py"
    "::test_a_key_that_does_not_train_is_served_linked_and_dropped",
    "proxy.request_timeout_s": "unit/rollout_proxy/test_serving.py::test_longest_answer",
    "proxy.engine_wait_s": "unit/rollout_proxy/test_key_effects.py"
    "::test_without_a_wait_an_engine_that_is_away_is_told_of_at_once",
    "proxy.max_request_bytes": "unit/rollout_proxy/test_app.py::test_large_body_is_refused",
    "proxy.spool_dir": "unit/rollout_proxy/test_key_effects.py::test_the_spool_takes_no_more_than_its_bytes",
    "proxy.spool_max_bytes": "unit/rollout_proxy/test_key_effects.py::test_the_spool_takes_no_more_than_its_bytes",
    "proxy.max_captures": "unit/rollout_proxy/test_writer.py::test_the_configured_bound_is_kept",
    "proxy.scrub": "unit/rollout_proxy/test_scrubbing.py::test_personal_data_is_masked",
    "proxy.scrub_phone_regions": "unit/rollout_proxy/test_scrubbing.py::test_phone_regions_are_a_choice",
    "proxy.train_scrubbed": "unit/rollout_proxy/test_scrubbing.py::test_trained_all_the_same_when_told_so",
    "linker.settle_ms": "unit/rollout_proxy/test_key_effects.py::test_an_uncertain_link_waits_for_the_configured_time",
    "linker.reorder_ms": "unit/rollout_proxy/test_linker_task.py"
    "::test_captures_of_two_proxies_are_taken_in_the_order_in_which_they_ended",
    "linker.doubt_ms": "unit/rollout_proxy/test_linker_task.py"
    "::test_what_may_be_a_side_call_is_doubted_for_the_configured_time",
    "linker.max_requests": "unit/rollout_proxy/test_linker_task.py"
    "::test_the_oldest_requests_are_settled_past_the_configured_number",
    "linker.capture_log": "unit/rollout_proxy/test_linker_task.py"
    "::test_captures_are_logged_where_the_configuration_says",
    "linker.lease_ms": "unit/rollout_proxy/test_linker_lease.py::test_a_lease_lasts_as_long_as_configured",
    "redis.url": "unit/cli/test_app.py::test_status_reads_settings_too",
    "redis.sentinel_password": "integration/redis_ha/test_replicas.py::test_sentinels_with_a_password_of_their_own",
    "redis.wait_replicas": "integration/redis_ha/test_replicas.py"
    "::test_a_write_that_no_replica_has_does_not_count_and_is_not_made_twice",
    "redis.wait_ms": "integration/redis_ha/test_replicas.py"
    "::test_a_write_that_no_replica_has_does_not_count_and_is_not_made_twice",
    "redis.claim_idle_ms": "unit/teacher/test_key_effects.py::test_the_worker_claims_and_gives_up_as_configured",
    "redis.max_attempts": "unit/teacher/test_key_effects.py::test_the_worker_claims_and_gives_up_as_configured",
    "redis.turn_retention_s": "integration/contract/test_opening.py"
    "::test_a_turns_record_is_kept_for_the_configured_time",
    "redis.check_durability": "unit/rollout_proxy/test_key_effects.py"
    "::test_a_redis_that_could_lose_messages_is_refused_where_that_is_checked",
    "publishing.weights_dir": "unit/trainer/test_offline.py::test_no_engine_is_told_of_a_version",
    "publishing.transport": "unit/trainer/test_offline.py::test_no_engine_is_told_of_a_version",
    "publishing.keep_versions": "integration/trainer/test_key_effects.py::test_the_newest_versions_are_kept",
    "publishing.timeout_s": "integration/trainer/test_key_effects.py::test_a_call_to_an_engine_ends_after_its_time",
    "publishing.probe_tolerance": "integration/trainer/test_key_effects.py"
    "::test_scores_may_differ_by_the_configured_tolerance",
    "publishing.reconcile_interval_s": "integration/trainer/test_key_effects.py"
    "::test_engines_are_compared_at_the_configured_interval",
    "gate.enabled": "unit/trainer/test_gate_engine.py::test_no_gate_where_none_is_wanted",
    "gate.probe_file": "unit/trainer/test_gate_engine.py::test_keys_arrive_where_probes_are_answered",
    "gate.temperature": "unit/trainer/test_gate_engine.py::test_keys_arrive_where_probes_are_answered",
    "gate.max_new_tokens": "unit/trainer/test_gate_engine.py::test_keys_arrive_where_probes_are_answered",
    "gate.seed": "unit/trainer/test_gate_engine.py::test_keys_arrive_where_probes_are_answered",
    "gate.batch_size": "unit/trainer/test_gate_engine.py::test_keys_arrive_where_probes_are_answered",
    "gate.device": "unit/trainer/test_memory.py::test_on_a_gpu_the_gates_process_takes_the_leading_ranks_device",
    "gate.engine_url": "unit/trainer/test_gate_engine.py::test_a_second_name_of_a_serving_engine_is_found_out",
    "gate.timeout_s": "unit/trainer/test_gate_engine.py::test_keys_arrive_where_probes_are_answered",
    "gate.patience": "integration/trainer/test_key_effects.py::test_patience_is_the_number_of_releases_held_back",
    "gate.standard_errors": "unit/trainer/test_gate.py::test_a_difference_within_its_noise_passes_however_large",
    "gate.base_factor": "unit/trainer/test_gate.py"
    "::test_the_first_weights_are_compared_with_margins_of_the_configured_width",
    "gate.answer_rate_drop": "unit/trainer/test_gate.py::test_each_margin_holds_back_what_is_past_it",
    "gate.length_ratio": "unit/trainer/test_gate.py::test_each_margin_holds_back_what_is_past_it",
    "gate.repetition_rise": "unit/trainer/test_gate.py::test_each_margin_holds_back_what_is_past_it",
    "gate.entropy_change": "unit/trainer/test_gate.py::test_each_margin_holds_back_what_is_past_it",
    "gate.base_nll_rise": "unit/trainer/test_gate.py::test_each_margin_holds_back_what_is_past_it",
    "gate.score_drop": "unit/trainer/test_gate.py::test_each_margin_holds_back_what_is_past_it",
    "metrics.host": "integration/trainer/test_key_effects.py::test_metrics_are_served_at_the_configured_address",
    "metrics.port": "integration/trainer/test_key_effects.py::test_metrics_are_served_at_the_configured_address",
    "metrics.tensorboard": "unit/trainer/test_metrics.py::test_tensorboard_can_be_left_out",
    "metrics.tensorboard_dir": "unit/trainer/test_metrics.py"
    "::test_tensorboard_gets_every_number_and_forgets_lost_steps",
    "metrics.wandb_project": "unit/trainer/test_metrics.py::test_wandb_gets_figures_and_no_secret",
    "metrics.peak_tflops": "unit/trainer/test_work.py::test_a_step_says_what_it_computed",
    "console.host": "unit/console/test_wiring.py::test_it_listens_where_it_is_configured",
    "console.port": "unit/console/test_wiring.py::test_it_listens_where_it_is_configured",
    "console.password": "unit/console/test_access.py::test_the_password_signs_in_and_another_does_not",
    "console.read_requires_password": "unit/console/test_access.py"
    "::test_reading_is_free_unless_it_is_configured_otherwise",
    "console.metrics_token": "unit/console/test_access.py::test_a_scraper_reads_with_its_token_alone",
    "console.session_hours": "unit/console/test_access.py::test_a_sign_in_lasts_as_long_as_configured",
    "console.history": "unit/console/test_wiring.py::test_the_history_has_the_configured_bounds",
    "console.history_max_entries": "unit/console/test_wiring.py::test_the_history_has_the_configured_bounds",
    "console.history_max_mb": "unit/console/test_wiring.py::test_the_history_has_the_configured_bounds",
    "console.database": "unit/console/test_wiring.py::test_the_database_lies_where_it_is_configured",
    "console.keep_turns": "unit/console/test_wiring.py::test_the_newest_turns_are_kept",
    "console.keep_mb": "unit/console/test_wiring.py::test_contents_are_kept_up_to_their_bytes",
    "console.allowed_hosts": "unit/console/test_access.py::test_names_under_which_it_answers",
    "console.doctor_command": "unit/console/test_app.py::test_doctor_is_run_and_its_report_kept",
    "console.doctor_timeout_s": "unit/console/test_app.py::test_a_doctor_that_gives_no_report_says_why",
    "logging.level": "unit/rollout_proxy/test_logs.py::test_nothing_of_a_request_is_logged",
    "logging.format": "unit/rollout_proxy/test_logs.py::test_nothing_of_a_request_is_logged",
    "tracing.otlp_endpoint": "unit/rollout_proxy/test_tracing.py::test_spans_reach_a_collector",
    "tracing.sample_ratio": "unit/rollout_proxy/test_tracing.py::test_a_share_of_traces_may_be_kept",
}

#: Keys that act in processes that a test starts, where their effect cannot be taken away from outside.
IN_PROCESSES_OF_THEIR_OWN = {
    "training.sequence_parallel": "integration/trainer/test_layouts.py::test_four_processes_make_the_same_steps",
}

#: Keys with one value that can be honoured; every other is refused, by the test named, with the reason.
REFUSED = {
    "rollout.passive_mode": "unit/contract/test_config.py::test_a_wrong_value_says_what_and_how_to_mend_it",
    "training.engine": "unit/contract/test_refused_values.py::test_a_value_is_refused_by_its_key",
    "training.use_custom_loss": "unit/contract/test_config.py::test_a_wrong_value_says_what_and_how_to_mend_it",
    "lora.dropout": "unit/contract/test_refused_values.py::test_a_value_is_refused_by_its_key",
    "advantage.gamma": "unit/contract/test_config.py::test_a_wrong_value_says_what_and_how_to_mend_it",
    "advantage.lam": "unit/contract/test_config.py::test_a_wrong_value_says_what_and_how_to_mend_it",
    "opd.teacher_scoring_mode": "unit/teacher/test_main.py::test_a_teacher_that_would_generate_does_not_start",
    "prm.api_keys.*.tenant": "unit/contract/test_api_keys.py"
    "::test_callers_of_the_prm_are_named_alike_but_are_no_tenants",
    "prm.api_keys.*.train": "unit/contract/test_api_keys.py"
    "::test_callers_of_the_prm_are_named_alike_but_are_no_tenants",
}

#: Keys that only people read.
FOR_PEOPLE = {"prm.api_keys.*.name", "proxy.api_keys.*.name"}
