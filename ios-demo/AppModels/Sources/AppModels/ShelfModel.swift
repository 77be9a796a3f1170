import AppParts
import Core
import Observation

/// The models that were shipped into the app.
@MainActor @Observable
public final class ShelfModel {
    public enum State: Sendable {
        case loading
        /// There is nothing to show; the message is a sentence.
        case failed(String)
        case ready(Shelf)
    }

    public let equipment: Equipment
    public private(set) var state = State.loading
    private let background = Background()

    public init(_ equipment: Equipment) { self.equipment = equipment }

    /// Reads the models once, which takes a while: every byte is compared with what was signed.
    public func open() async {
        if case .ready = state { return }
        state = .loading
        let equipment = equipment
        do {
            state = .ready(try await background.run { try Shelf.open(equipment, $0) })
        } catch is Cancelled {
            // Whoever asked has gone; it is asked again when somebody looks.
        } catch {
            state = .failed(error.sentence)
        }
    }

    /// The models that can be used; none before they are read.
    public var usable: [ShelvedModel] {
        if case .ready(let shelf) = state { shelf.usable } else { [] }
    }

    /// Whether a model is used that nobody signed: the screens say so under a banner.
    public var usesUnsigned: Bool {
        if case .ready(let shelf) = state { shelf.usesUnsigned } else { false }
    }
}
