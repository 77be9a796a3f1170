import Foundation

/// How a label of a classifier, or the kind of an entity, is read: labels are words, and those that are numbers have none.
public enum LabelName: Sendable, Equatable {
    /// `LABEL_3`, or digits alone: nobody named the class.
    case number(String)
    case words(String)

    private static let generic = "LABEL_"

    public init(_ label: String) {
        let digits = label.hasPrefix(Self.generic) ? label.dropFirst(Self.generic.count) : label[...]
        let isNumber = !digits.isEmpty && digits.utf8.allSatisfy { (0x30...0x39).contains($0) }
        self = isNumber ? .number(String(digits)) : .words(label.replacingOccurrences(of: "_", with: " "))
    }
}

/// How sure a model is of what it found, in the steps that a screen marks differently.
public enum Confidence: Sendable, Equatable {
    case sure
    case likely
    case unsure

    private static let sureFrom = 0.8
    private static let likelyFrom = 0.5

    /// - Parameter share: a probability.
    public init(_ share: Double) { self = share >= Self.sureFrom ? .sure : share >= Self.likelyFrom ? .likely : .unsure }
}
