import Core

/// A text in pieces, so that a screen can show some of them otherwise.
public struct Segment: Sendable, Equatable {
    public let text: String
    /// What was found in it; nil for what lies between.
    public let found: Found?

    /// Returns a text's pieces in order. Parts that do not lie in the text, or over one before, are left out.
    public static func split(_ text: String, _ found: [Found]) -> [Segment] {
        var segments: [Segment] = []
        var at = text.utf16.startIndex
        for part in found.sorted(by: { $0.from < $1.from }) {
            // Positions are of UTF-16, and one may lie within a character that has no half.
            guard part.from < part.to, let from = text.utf16.index(text.startIndex, offsetBy: part.from, limitedBy: text.endIndex),
                let to = text.utf16.index(text.startIndex, offsetBy: part.to, limitedBy: text.endIndex), from >= at,
                let inside = String(text.utf16[from..<to]), let before = String(text.utf16[at..<from])
            else { continue }
            if !before.isEmpty { segments.append(Segment(text: before, found: nil)) }
            segments.append(Segment(text: inside, found: part))
            at = to
        }
        if let rest = String(text.utf16[at...]), !rest.isEmpty { segments.append(Segment(text: rest, found: nil)) }
        return segments
    }
}
