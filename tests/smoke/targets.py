"""The shortest form of each Makefile target that is a benchmark or injects faults, and its report.

A short form runs the same code as the full one, with fewer repetitions, jobs and seconds. Its
figures mean nothing.
"""

from __future__ import annotations

import re

import msgspec

from tests.architecture.source import ROOT

PATTERN = re.compile(r"^(bench-[a-z-]+|chaos|soak|fuzz|zoo):", re.MULTILINE)


class Smoke(msgspec.Struct, frozen=True):
    """`keys` of the JSON object in the last line; without keys, the target is a pytest run."""

    environ: dict[str, str]
    keys: tuple[str, ...] = ()


def measured_targets() -> list[str]:
    """Return every Makefile target that needs a smoke test."""
    return sorted(PATTERN.findall((ROOT / "Makefile").read_text()))


SMOKE = {
    "bench-bus": Smoke(
        {
            "BENCH_RATE": "200",
            "BENCH_STEADY_S": "2",
            "BENCH_SETTLE_S": "1",
            "BENCH_FROZEN_S": "2",
            "BENCH_ABSENT_S": "4",
        },
        (
            "facts_per_s",
            "p99_ms",
            "lost",
            "applied_disordered",
            "catch_up_s",
            "frozen_s",
            "restart_s",
            "absence_s",
        ),
    ),
    "bench-consistency": Smoke(
        {
            "PROGRAM": "wide-and-deep",
            "BENCH_SEEDS": "1",
            "BENCH_ARMS": "global-batch-2,exact-2",
            "BENCH_MINUTES": "0",
            "BENCH_ALTERNATIONS": "1",
            "BENCH_STEADY_S": "4",
            "BENCH_WARM_S": "1",
        },
        (
            "async_gap_points",
            "global_batch_gap_points",
            "exact_bit_equal",
            "global_batch_throughput",
            "exact_throughput",
            "staleness_p99",
            "power",
        ),
    ),
    "bench-data": Smoke(
        {
            "BENCH_FORMS": "tfrecord",
            "BENCH_WORKERS": "1",
            "BENCH_ALTERNATIONS": "1",
            "BENCH_STEADY_S": "2",
        },
        ("tfrecord", "tfrecord_weir_chief_ms", "single_process", "chief_batches_per_s"),
    ),
    "bench-decide": Smoke(
        {"BENCH_SHAPES": "64x40,1024x640", "BENCH_SAMPLES": "2"},
        (
            "full_1024x640_p99_ms",
            "incremental_1024x640_p99_ms",
            "report_p99_ms",
            "growth_exponent",
            "table",
        ),
    ),
    "bench-dike": Smoke(
        {"BENCH_SEEDS": "1"}, ("mean_8", "p5_8", "mean_4", "one_ps_mean", "surfaces", "models")
    ),
    "bench-dlrover": Smoke(
        {"BENCH_JOBS": "20", "BENCH_SEEDS": "1", "BENCH_CASES": "1"},
        (
            "jct_cut",
            "completion_rate_gain",
            "cpu_use_gain",
            "memory_use_gain",
            "warm_against_cold",
            "cases",
        ),
    ),
    "bench-elastic": Smoke(
        {"BENCH_REPETITIONS": "1", "BENCH_EPOCHS": "3"},
        ("static_s", "elastic_s", "cut", "exactly_once", "utilisation_elastic", "accuracy_elastic"),
    ),
    "bench-elastic-batch": Smoke(
        {"BENCH_SEEDS": "1", "BENCH_CASES": "100", "BENCH_HOURS": "0.5"},
        (
            "equals_brute_force",
            "decide_ms",
            "completed_ratio_max",
            "completion_speedup_max",
            "table",
        ),
    ),
    "bench-flood": Smoke(
        {"BENCH_QUIET_S": "1", "BENCH_FLOOD_S": "2", "BENCH_CONSUMERS": "40"},
        (
            "quiet_decided_p99_ms",
            "submitter_decided_p99_ms",
            "job_decided_p99_ms",
            "submitter_refused",
            "job_refused",
        ),
    ),
    "bench-flowcon": Smoke(
        {"BENCH_SEEDS": "1"},
        (
            "late_job_cut",
            "makespan_change",
            "policy_late_job_cut",
            "policy_makespan_change",
            "grid",
        ),
    ),
    "bench-flowcon-live": Smoke(
        {"BENCH_WORK": "0.005", "BENCH_SCALE": "0.02"},
        (
            "late_job_cut",
            "makespan_change",
            "longest_gap_s",
            "gap_at_resize_s",
            "resize_median_s",
            "exactly_once",
        ),
    ),
    "bench-hot-ps": Smoke(
        {"BENCH_ARMS": "weir", "BENCH_BATCH": "16384", "BENCH_WARM_S": "1", "BENCH_STARVED_S": "3"},
        ("weir_s", "pause_s", "noticed_s", "exactly_once"),
    ),
    "bench-live": Smoke(
        {
            "BENCH_POLICIES": "weir",
            "BENCH_EPOCHS": "4",
            "BENCH_LEAVE_S": "1",
            "BENCH_LOSS_PROGRAMS": "characters",
            "BENCH_LOSS_EPOCHS": "1",
        },
        (
            "batch_changed_by",
            "rates_follow_the_rule",
            "exactly_once",
            "accuracy_within",
            "longest_pause_s",
            "time_to_loss_ratio",
            "runs",
        ),
    ),
    "bench-histories": Smoke(
        {"BENCH_HISTORIES": "1", "BENCH_ARMS": "exact,exact-tables"},
        ("exact_histories", "exact_equal", "exact_tables_equal", "exact_tables_variables"),
    ),
    "bench-noise": Smoke(
        {
            "BENCH_PROGRAMS": "line",
            "BENCH_MODES": "async",
            "BENCH_ALTERNATIONS": "1",
            "BENCH_STEADY_S": "2",
        },
        ("noise_ratio_line", "throughput_ratio", "cpu_ratio"),
    ),
    "bench-overhead": Smoke(
        {"BENCH_ALTERNATIONS": "1", "BENCH_STEADY_S": "4"},
        ("ratio", "weir_samples_per_s", "plain_samples_per_s", "parameters"),
    ),
    "bench-page": Smoke(
        {
            "BENCH_NODES": "20",
            "BENCH_JOBS": "5",
            "BENCH_RATE": "20",
            "BENCH_STEADY_S": "2",
            "BENCH_SETTLE_S": "1",
        },
        (
            "top_frames_per_s",
            "nodes_behind_p99_ms",
            "drained_s",
            "facts_per_s",
            "page_cpu",
            "page_mb",
        ),
    ),
    "bench-pause": Smoke(
        {
            "BENCH_EACH_WAY": "1",
            "BENCH_HAND_ROUNDS": "1",
            "BENCH_WARM_S": "1",
            "BENCH_AFTER_S": "4",
        },
        (
            "make_before_break_median_s",
            "restart_median_s",
            "ratio",
            "lost_work_s",
            "handwritten_median_s",
        ),
    ),
    "bench-policies": Smoke(
        {"BENCH_SEEDS": "1", "BENCH_TRACES": "heavy", "BENCH_WORK": "0.05"},
        ("worst_ratio_to_best_seed", "worst_ratio_to_optimus", "seeds", "ratios", "traces"),
    ),
    "bench-preparation": Smoke(
        {"BENCH_ROUNDS": "1"},
        ("start_ratio", "first_ratio", "grown_ratio", "shrunk_ratio", "first", "plain"),
    ),
    "bench-reaction": Smoke(
        {"BENCH_NODES": "5", "BENCH_DELETIONS": "5"},
        ("capacity_p50_ms", "capacity_p99_ms", "decision_p50_ms", "decision_p99_ms", "monitor_mb"),
    ),
    "bench-release": Smoke(
        {"BENCH_ROUNDS": "1", "BENCH_QUIET_S": "2"},
        ("rounds", "decided_once", "final_at_once", "as_fast_as_alone", "wait_s_p50", "wait_s_p99"),
    ),
    "bench-saves": Smoke(
        {"BENCH_SAVES": "1"},
        ("standing_pause_s", "pause_ratio", "cost_ratio", "cost_ratio_all_rows", "parameters"),
    ),
    "bench-scale": Smoke(
        {
            "BENCH_NODES": "20",
            "BENCH_PODS_A_NODE": "5",
            "BENCH_DELETIONS": "10",
            "BENCH_TASKS": "10",
        },
        (
            "stand_in_list_s",
            "monitor_full_picture_s",
            "monitor_memory_mb",
            "launcher_job_up_s",
            "launcher_requests",
        ),
    ),
    "bench-lost-ps": Smoke(
        {"BENCH_KILLS": "1", "BENCH_ALTERNATIONS": "0", "BENCH_STEADY_S": "4"},
        (
            "kills",
            "repeated_s_p50",
            "repeated_s_max",
            "back_s_p50",
            "throughput_lost",
            "counted",
            "expected",
        ),
    ),
    "bench-tables": Smoke(
        {
            "BENCH_TABLES_PARAMETERS": "10m",
            "BENCH_DENSE_PARAMETERS": "10m",
            "BENCH_HAND_OVERS": "1",
            "BENCH_STEADY_S": "4",
        },
        (
            "pause_s_10m",
            "pause_growth",
            "lookups_per_s",
            "chief_memory_mb",
            "lookup_speedup",
            "bytes_per_batch",
            "save_cost",
            "dirty_cost",
            "dense_pause_s_10m",
            "dense_step_s",
        ),
    ),
    "bench-year": Smoke(
        {"BENCH_JOBS": "20", "BENCH_CONCURRENT": "5", "BENCH_HANDOVERS": "2"},
        (
            "restart_s",
            "memory_mb",
            "snapshot_mb",
            "orders_mb",
            "orders_growth",
            "jobs_lost",
            "nodes_lost",
        ),
    ),
    "chaos": Smoke(
        {"CHAOS_FAULTS": "1", "CHAOS_KINDS": "worker killed", "CHAOS_NAIVE": "0"},
        (
            "faults",
            "not_recovered",
            "examples_lost",
            "applied_twice_within",
            "global_batch_jobs",
            "jobs_with_table",
            "rows_wrong",
            "updates_wrong",
            "own_failures",
            "commit_waits_s",
            "drained_redone_s_max",
            "pods_leaked",
            "jobs_finished",
            "recovery_s",
        ),
    ),
    "fuzz": Smoke({"FUZZ_DECISIONS": "2000"}),
    "soak": Smoke(
        {"SOAK_HANDOVERS": "2"},
        ("hand_overs", "flat", "pods_leaked", "median_s", "p95_s", "growth"),
    ),
    "zoo": Smoke(
        {"PROGRAM": "convnet,sorted_digits", "ZOO_SEEDS": "2"},
        ("programs", "equal", "unequal", "refused", "figures", "minutes"),
    ),
}
