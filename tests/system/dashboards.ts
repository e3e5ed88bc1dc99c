// What a dashboard may be: Grafana's own types, with the options of each kind of panel. Where they
// name an enum, JSON has its values.
import type { Dashboard, Panel, RowPanel } from "@grafana/schema";
import type * as Heatmap from "@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen";
import type * as Stat from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type * as StateTimeline from "@grafana/schema/dist/esm/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen";
import type * as Table from "@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen";
import type * as TimeSeries from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

type Json<T> = T extends string
  ? `${T}`
  : T extends number
    ? number extends T
      ? number
      : `${T}` extends `${infer N extends number}`
        ? N
        : T
    : T extends object
      ? { [K in keyof T]: Json<T[K]> }
      : T;

type FieldConfig = NonNullable<Panel["fieldConfig"]>;

type Of<Type extends string, Options, Custom> = Json<
  Omit<Panel, "type" | "options" | "fieldConfig">
> & {
  type: Type;
  options: Json<Options>;
  fieldConfig: {
    defaults: Json<Omit<FieldConfig["defaults"], "custom">> & { custom?: Json<Custom> };
    overrides: Json<FieldConfig["overrides"]>;
  };
};

type AnyPanel =
  | Of<"heatmap", Heatmap.Options, Heatmap.FieldConfig>
  | Of<"stat", Stat.Options, never>
  | Of<"state-timeline", StateTimeline.Options, StateTimeline.FieldConfig>
  | Of<"table", Table.Options, Table.FieldConfig>
  | Of<"timeseries", TimeSeries.Options, TimeSeries.FieldConfig>
  | Json<RowPanel>;

export type Board = Json<Omit<Dashboard, "panels">> & { panels: AnyPanel[] };
