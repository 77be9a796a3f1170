import Core

/// What a screen calls a model: its recipe's name, and as much more as tells it from another one.
public struct ModelName: Sendable, Hashable {
    public let recipe: String
    /// The scheme as the contract spells it; nil where the recipe's name is enough.
    public let scheme: String?
    public let runtime: String?

    /// Names a model fully.
    public init(_ model: ShelvedModel) {
        self.init(recipe: model.name, scheme: model.model.signature.scheme, runtime: model.linked.runtime.name)
    }

    /// Names a model beside another one.
    public init(_ model: ShelvedModel, beside other: ShelvedModel) {
        let (scheme, otherScheme) = (model.model.signature.scheme, other.model.signature.scheme)
        self.init(
            recipe: model.name, scheme: model.name == other.name ? scheme : nil,
            runtime: model.name == other.name && scheme == otherScheme ? model.linked.runtime.name : nil)
    }

    public init(recipe: String, scheme: String?, runtime: String?) {
        self.recipe = recipe
        self.scheme = scheme
        self.runtime = runtime
    }
}
