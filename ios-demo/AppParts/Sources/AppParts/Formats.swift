import Core
import Foundation

/// How numbers are written on every screen.
public enum Formats {
    private static let smallMs = 10.0
    private static let largeMs = 100.0
    private static let secondsFromMs = 10_000.0
    private static let bytesPerMegabyte = 1e6

    /// Returns a latency with three digits or so: more than that is noise.
    public static func ms(_ ms: Double) -> String {
        if !ms.isFinite { return "–" }
        if ms >= secondsFromMs { return "\(fixed(ms / 1_000, 1)) s" }
        return "\(fixed(ms, ms < smallMs ? 2 : ms < largeMs ? 1 : 0)) ms"
    }

    /// Returns a latency of some runs on a screen, with one decimal: more of it changes from text to text.
    public static func roundedMs(_ ms: Double) -> String {
        if ms < 1 || ms >= largeMs || !ms.isFinite { return Self.ms(ms) }
        return "\(fixed(ms, 1)) ms"
    }

    /// Returns how many times as long as another a time is.
    public static func times(_ ratio: Double) -> String { fixed(ratio, ratio < smallMs ? 1 : 0) }

    /// Returns a size in MB of a million bytes, as the pipeline reports it.
    public static func megabytes(_ bytes: Int64) -> String {
        let megabytes = Double(bytes) / bytesPerMegabyte
        return "\(fixed(megabytes, megabytes < smallMs ? 2 : 1)) MB"
    }

    /// Returns a probability in percent.
    public static func percent(_ share: Double) -> String { "\(fixed(100 * share, 1))%" }

    /// Returns a probability in whole percent.
    public static func wholePercent(_ share: Double) -> String { "\(fixed(100 * share, 0))%" }

    /// Returns a cosine with the digits that a quantised file moves.
    public static func cosine(_ cosine: Double) -> String { fixed(cosine, 5) }

    /// Returns the value of a regression.
    public static func value(_ value: Float) -> String { fixed(Double(value), 3) }

    /// Returns a ratio of signal to noise; nil where there is no noise.
    public static func decibels(_ decibels: Double) -> String? { decibels.isInfinite ? nil : "\(fixed(decibels, 1)) dB" }

    /// Returns the middle one of some latencies, nil where there is none: for a screen, not for a record.
    public static func median(_ samples: [Double]) -> Double? {
        if samples.isEmpty { return nil }
        let sorted = samples.sorted()
        let half = sorted.count / 2
        return sorted.count % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2
    }

    /// Returns a number with so many digits behind the point; the same on every phone, as the app's words are.
    private static func fixed(_ number: Double, _ digits: Int) -> String {
        String(format: "%.\(digits)f", locale: Locale(identifier: "en_US_POSIX"), number)
    }
}

extension Error {
    /// The error as a sentence for a screen.
    public var sentence: String {
        // The core's errors, which are values, describe themselves in a sentence; the system's are objects, and have it elsewhere.
        let text = type(of: self) is AnyClass ? localizedDescription : "\(self)"
        guard let first = text.first else { return "Something failed, and does not say what." }
        let end: Set<Character> = [".", "!", "?"]
        return first.uppercased() + text.dropFirst() + (text.last.map(end.contains) ?? false ? "" : ".")
    }
}
