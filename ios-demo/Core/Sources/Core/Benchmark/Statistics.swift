/// Percentiles of samples in ms; nil where the samples are too few to tell.
public struct Percentiles: Sendable {
    public let p50: Double?
    public let p90: Double?
    public let p99: Double?
    public let mean: Double?
    public let n: Int
}

/// Statistics of latencies; the same arithmetic as `pipeline/benchmark/record.py`.
public enum Statistics {
    /// A percentile is given only where at least so many samples lie beyond it.
    private static let tailSamples = 2.0
    private static let tiny = 1e-9

    /// Returns the percentiles and the mean of samples.
    public static func percentiles(_ samples: [Double]) -> Percentiles {
        let sorted = samples.sorted()
        return Percentiles(
            p50: at(sorted, 0.5), p90: at(sorted, 0.9), p99: at(sorted, 0.99), mean: samples.isEmpty ? nil : mean(samples),
            n: samples.count)
    }

    /// Interpolates between neighbours, as numpy's default does.
    private static func at(_ sorted: [Double], _ fraction: Double) -> Double? {
        if Double(sorted.count) * (1 - fraction) < tailSamples - tiny { return nil }
        let place = fraction * Double(sorted.count - 1)
        let below = Int(place)
        let above = min(below + 1, sorted.count - 1)
        return sorted[below] + (sorted[above] - sorted[below]) * (place - Double(below))
    }

    /// Returns the mean over texts of each text's median pass: one slow pass does not count. NaN where there is no pass.
    public static func meanOfMedians(_ samples: [Double], passes: Int) -> Double {
        if passes < 1 { return .nan }
        let texts = samples.count / passes
        return mean((0..<texts).map { text in median((0..<passes).map { samples[$0 * texts + text] }) })
    }

    private static func mean(_ values: [Double]) -> Double { values.reduce(0, +) / Double(values.count) }

    private static func median(_ values: [Double]) -> Double {
        let sorted = values.sorted()
        let half = sorted.count / 2
        return sorted.count % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2
    }
}
