// What do answers look like? As the modules of `shardkeep/view/web` write them.

/** JSON has no nan and no inf: they come by their names. */
export type Num = number | string;

export interface Place {
  id: string;
  kind: "run" | "checkpoint";
  name: string;
  path: string;
}

export interface Home {
  version: string;
  places: Place[];
}

export type State = "committed" | "damaged" | "in progress" | "half-written" | "unknown";

export interface Step {
  at: string;
  step: number;
  name: string;
  state: State;
  problem: string;
  nbytes: number;
  ranks: number;
  saved_at: number;
  metrics: Record<string, Num>;
  kept_by: string[];
  left_behind: boolean;
  seconds: number | null;
  blocked: number | null;
}

export interface Run {
  id: string;
  name: string;
  path: string;
  keep: { last?: number; every?: number; best?: [string, string, number] };
  steps: Step[];
  look_again: number;
}

export interface Tensors {
  keys: string[];
  dtype: number[];
  shape: number[];
  nbytes: number[];
  chunks: number[];
  dtypes: string[];
  shapes: number[][];
}

export interface SaveReport {
  ranks: number[];
  hosts: string[];
  host_of: number[];
  nbytes: number[];
  seconds: Record<string, number[]>;
  commit_seconds: number;
}

export interface Checkpoint {
  at: string;
  path: string;
  format: string;
  save_id: string;
  ranks: number | null;
  nbytes: number;
  file_nbytes: number;
  step: number | null;
  saved_at: number | null;
  metrics: Record<string, Num>;
  metadata: Record<string, string>;
  tensors: Tensors;
  files: { names: string[]; nbytes: number[]; ranks: number[] | null };
  report: SaveReport | null;
  values: [string, string][];
}

export interface Tensor {
  key: string;
  dtype: string;
  shape: number[];
  nbytes: number;
  files: string[];
  ranks: number[] | null;
  box_count: number;
  starts: number[][];
  stops: number[][];
  file_of: number[];
  bytes: [number, number][];
}

export interface Stats {
  count: number;
  nan: number;
  inf: number;
  min: Num | null;
  max: Num | null;
  mean: Num | null;
  std: Num | null;
}

export interface Values {
  stats: Stats;
  bins: number[];
  odd: {
    boxes: { start: number[]; stop: number[]; nan: number; inf: number }[];
    box_count: number;
    cells: number[][];
  };
  read_nbytes: number;
  is_whole: boolean;
}

export interface Slice {
  row_dim: number | null;
  column_dim: number;
  index: number[];
  rows: [number, number, number];
  columns: [number, number, number];
  cells: string;
}

export interface Changes {
  only_a: string[];
  only_b: string[];
  other_kind: string[];
  equal: number;
  keys: string[];
  changed: number[];
  count: number[];
  most: Num[];
  relative: Num[];
}

export interface Spread {
  key: string;
  least: Num;
  most: Num;
  stats: [Stats, Stats];
  bins: [number[], number[]];
  is_whole: boolean;
}

export interface Drift {
  key: string;
  steps: (Stats & { step: number; from_first: Num; from_last: Num })[];
  left_out: string[];
  sampled: boolean;
}

export interface Reads {
  file: number;
  nbytes: number;
  requests: number;
  ranges: [number, number][];
  range_count: number;
}

export interface Reader {
  ranks: string;
  count: number;
  nbytes_wanted: number;
  nbytes_read: number;
  requests: number;
  files: number;
  scratch_nbytes: number;
  peak_nbytes: number;
  reads: Reads[];
}

export interface WhatIf {
  mesh: Record<string, number>;
  ranks: number;
  distinct: number;
  is_sample: boolean;
  threads: number;
  total: { nbytes_wanted: number; nbytes_read: number; requests: number };
  readers: Reader[];
  file_nbytes: number[];
  file_names: string[];
}
