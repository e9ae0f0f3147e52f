// What is drawn, in the page's colours. Tooltips are drawn, not built as HTML: the page's content policy allows no
// inline style.
import type { BarSeriesOption, LineSeriesOption } from 'echarts/charts'
import type { GridComponentOption, LegendComponentOption, TooltipComponentOption } from 'echarts/components'
import type { ComposeOption } from 'echarts/core'
import { figure, tick } from '../format'

export type Option = ComposeOption<
  BarSeriesOption | LineSeriesOption | GridComponentOption | LegendComponentOption | TooltipComponentOption
>

export interface Palette {
  text: string
  muted: string
  line: string
  surface: string
  series: string[]
  negative: string
  positive: string
  font: string
}

export function palette(): Palette {
  const style = getComputedStyle(document.documentElement)
  const of = (name: string): string => style.getPropertyValue(`--${name}`).trim()
  return {
    text: of('text'),
    muted: of('muted'),
    line: of('line'),
    surface: of('surface'),
    series: [1, 2, 3, 4, 5, 6].map((number) => of(`series-${number}`)),
    negative: of('neg-5'),
    positive: of('pos-5'),
    font: of('sans'),
  }
}

/** What every chart has in common. */
export function base(colours: Palette): Option {
  return {
    animation: false,
    color: colours.series,
    textStyle: { fontFamily: colours.font, color: colours.muted },
    grid: { left: 8, right: 16, top: 34, bottom: 4, containLabel: true },
    legend: {
      top: 0,
      left: 0,
      padding: [2, 0],
      icon: 'roundRect',
      itemWidth: 14,
      itemHeight: 3,
      itemGap: 14,
      textStyle: { color: colours.muted, fontSize: 12 },
      inactiveColor: colours.line,
    },
    tooltip: {
      trigger: 'axis',
      renderMode: 'richText',
      confine: true,
      backgroundColor: colours.surface,
      borderColor: colours.line,
      padding: [8, 10],
      textStyle: { color: colours.text, fontSize: 12 },
      axisPointer: { lineStyle: { color: colours.muted } },
      valueFormatter: (value) => figure(typeof value === 'number' ? value : null),
    },
  }
}

export function axes(colours: Palette) {
  return {
    line: { axisLine: { lineStyle: { color: colours.line } }, axisTick: { show: false } },
    bare: { axisLine: { show: false }, axisTick: { show: false } },
    label: { color: colours.muted, fontSize: 11.5, hideOverlap: true },
    split: { splitLine: { lineStyle: { color: colours.line } } },
  }
}

export interface Series {
  name: string
  points: [number, number | null][]
  dashed?: boolean
}

/** The closest that ticks may stand: what differs by less, differs by rounding. */
function finest(series: readonly Series[]): number {
  const largest = series
    .flatMap((one) => one.points)
    .reduce((most, [, value]) => Math.max(most, Math.abs(value ?? 0)), 0)
  return largest > 0 ? 10 ** (Math.floor(Math.log10(largest)) - 9) : 0
}

export function linesOption(series: readonly Series[], xName: string, colours: Palette): Option {
  const { line, bare, label, split } = axes(colours)
  const few = series.every((one) => one.points.length < 3)
  const common = base(colours)
  const alone = series.length === 1
  return {
    ...common,
    legend: { ...common.legend, show: !alone },
    grid: { ...common.grid, top: alone ? 12 : 34 },
    xAxis: {
      type: 'value',
      ...line,
      min: 'dataMin',
      max: 'dataMax',
      minInterval: 1,
      splitLine: { show: false },
      axisLabel: { ...label, formatter: (value: number) => (Number.isInteger(value) ? String(value) : '') },
      axisPointer: { label: { formatter: ({ value }: { value: unknown }) => `${xName} ${String(value)}` } },
    },
    yAxis: {
      type: 'value',
      scale: true,
      splitNumber: 4,
      minInterval: finest(series),
      ...bare,
      ...split,
      axisLabel: { ...label, formatter: tick },
    },
    series: series.map((one) => ({
      type: 'line',
      name: one.name,
      data: one.points,
      showSymbol: few,
      symbolSize: 6,
      lineStyle: { width: 1.8, type: one.dashed ? 'dashed' : 'solid' },
      emphasis: { disabled: true },
      sampling: 'lttb',
    })),
  }
}
