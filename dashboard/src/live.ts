/**
 * The live stream, `GET /v2/live`: server-sent events whose data is JSON. The page and `naiad top` read it.
 *
 * The server sends `server` and `models` first, then a `sample` per interval. Only what has changed is in a sample: a
 * version that is missing has served nothing since the last sample. Counters are totals since the version was loaded and
 * grow; a smaller value than before means a new start, never a negative rate. Durations are totals in nanoseconds (`_ns`).
 * With several server processes the values are of all of them.
 *
 * Query: `interval_ms` (250 to 60000, default 1000), `model` and `version` (adds `detail` of one model), `log=true`
 * (adds `log`; needs the category `logging`).
 */

/** First event, and again when it changes. */
export interface ServerEvent {
  name: string;
  version: string;
  extensions: string[];
  /** Unix time in milliseconds; another value than before means that the server was started anew. */
  started_ms: number;
  process_count: number;
  core_count: number;
  model_control_mode: "none" | "poll" | "explicit";
  ready: boolean;
  /** What this client may do, by category. `reason` says why not, for people; with `asks_for_key` an API key may change that. */
  allowed: Record<"inference" | "model-repository" | "rollout" | "logging" | "statistics", { allowed: boolean; reason?: string; asks_for_key?: boolean }>;
}

/** Second event, and again when a state changes: every model of the repository that this client may see. */
export interface ModelsEvent {
  models: ModelRow[];
  /** Models that were left out because there are more than the stream's bound (2000). */
  left_out: number;
}

export interface ModelRow {
  name: string;
  /** Backend or platform; "ensemble" for pipelines; empty while no version is loaded. */
  backend: string;
  /** Empty for a model that was never loaded. `version` is empty if the model failed before its versions were known. */
  versions: { version: string; state: "UNKNOWN" | "READY" | "UNAVAILABLE" | "LOADING" | "UNLOADING"; reason: string }[];
  /** The share of requests by version, if a rollout is under way. */
  rollout?: { stage: string; split: Record<string, number> };
  /** For an ensemble: the models of its steps. */
  steps?: string[];
}

export interface SampleEvent {
  time_ms: number;
  process: {
    /** CPU seconds of all processes of the server, worker processes included: a counter. */
    cpu_s: number;
    resident_bytes: number;
    /** Requests that are in the server now. */
    in_flight: number;
  };
  gpus?: { index: number; utilization: number; used_bytes: number; total_bytes: number }[];
  /** Versions that changed, as "model/version". Everything on connect. */
  versions: Record<string, VersionSample>;
}

export interface VersionSample {
  success: number;
  failure: number;
  /** By reason: "REJECTED", "CANCELED", "BACKEND", "OTHER". */
  failures: Record<string, number>;
  executions: number;
  inferences: number;
  request_ns: number;
  queue_ns: number;
  compute_input_ns: number;
  compute_ns: number;
  compute_output_ns: number;
  cache_hits: number;
  cache_misses: number;
  /** Requests that wait in the queue now, and those that execute now. */
  pending: number;
  executing: number;
  /** Latency histogram: counts by bucket (not cumulative), with the upper bounds of `bounds_us`; the last bucket has none. */
  latency_counts: number[];
  bounds_us: number[];
  /** Executions by batch size. */
  batch_sizes: Record<string, number>;
}

/** One model, if the query names it; per interval, if something has changed. */
export interface DetailEvent {
  model: string;
  version: string;
  /** The last requests, newest first, at most 20; kept only while somebody looks. */
  recent: RequestTimes[];
  /** The slowest requests since somebody looks (at most five minutes back), slowest first, at most 10. */
  slowest: RequestTimes[];
  /** Why the last batches were released, newest first, at most 20, as `GET .../explain` says it. */
  batches: { time_ms: number; size: number; request_count: number; reason: string; waited_us: number; compute_us: number }[];
  /** `process` is the number of the server process, from 1, if there are several: each has instances of the same names. */
  instances: { name: string; kind: string; device?: number; busy: boolean; process?: number }[];
  /** Models that its code called (BLS), or that its steps executed, by name: totals. A call fails also by a timeout or when it is cancelled. */
  calls: Record<string, { success: number; failure: number; duration_ns: number }>;
}

export interface RequestTimes {
  id: string;
  time_ms: number;
  outcome: "success" | string;
  batch_size: number;
  /** Parts of the request in order; they add up to the request's duration. */
  queue_us: number;
  input_us: number;
  compute_us: number;
  output_us: number;
  response_us: number;
}

/**
 * Requests that failed since the last event: at most 50 an interval, `left_out` counts the others. Without the category
 * `logging`, `id` and `message` are empty, and so is `id` of RequestTimes: they are texts of other clients.
 */
export interface FailuresEvent {
  failures: { time_ms: number; id: string; model: string; version: string; code: string; message: string }[];
  left_out: number;
}

/** Log lines since the last event, at most 200 an interval. */
export interface LogEvent {
  lines: { time_ms: number; level: "VERBOSE" | "INFO" | "WARNING" | "ERROR"; text: string }[];
  left_out: number;
}

/** The last event of a server that shuts down. */
export interface GoneEvent {
  reason: string;
}
