// The doctor's report as plain text, to paste somewhere.
import type { DoctorReport } from './api/types'

export function asText(report: DoctorReport): string {
  const lines = [`outcome: ${report.outcome}`]
  if (report.first_cause) lines.push(`mend first: ${report.first_cause}`)
  for (const { station, findings } of report.stations) {
    lines.push(station)
    for (const finding of findings) {
      lines.push(`  ${finding.outcome.padEnd(7)} ${finding.check}: ${finding.seen}`)
      if (finding.cause)
        lines.push(`          probable cause [${finding.cause}]: ${finding.explanation ?? ''}`)
      if (finding.fix) lines.push(`          fix: ${finding.fix}`)
      for (const row of finding.rows ?? [])
        lines.push(
          `          ${Object.entries(row)
            .map(([name, value]) => `${name}=${JSON.stringify(value)}`)
            .join('  ')}`,
        )
    }
  }
  return lines.join('\n') + '\n'
}
