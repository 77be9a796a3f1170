// Declared after Apple's documentation of SwiftUI; see README.md.
@_exported import Combine
@_exported import Foundation
@_exported import UIKit
@_exported import UniformTypeIdentifiers

// MARK: - Views and scenes

@MainActor @preconcurrency
public protocol View {
    associatedtype Body: View
    @ViewBuilder var body: Body { get }
}

extension Never: View {
    public var body: Never { fatalError() }
}

public protocol Primitive: View where Body == Never {}
extension Primitive {
    public var body: Never { fatalError() }
}

@resultBuilder
public enum ViewBuilder {
    public static func buildBlock() -> EmptyView { fatalError() }
    public static func buildBlock<Content: View>(_ content: Content) -> Content { content }
    public static func buildBlock<each Content: View>(_ content: repeat each Content) -> TupleView<(repeat each Content)> { fatalError() }
    public static func buildExpression<Content: View>(_ content: Content) -> Content { content }
    public static func buildIf<Content: View>(_ content: Content?) -> Content? { content }
    public static func buildEither<First: View, Second: View>(first: First) -> Either<First, Second> { fatalError() }
    public static func buildEither<First: View, Second: View>(second: Second) -> Either<First, Second> { fatalError() }
}

public struct TupleView<Content>: Primitive {}
public struct Either<First: View, Second: View>: Primitive {}
public struct EmptyView: Primitive {
    public init() {}
}
extension Optional: View where Wrapped: View {
    public var body: Never { fatalError() }
}

@MainActor @preconcurrency
public protocol Scene {
    associatedtype Body: Scene
    @SceneBuilder var body: Body { get }
}
extension Never: Scene {}

@resultBuilder
public enum SceneBuilder {
    public static func buildBlock<Content: Scene>(_ content: Content) -> Content { content }
}

@MainActor @preconcurrency
public protocol App {
    associatedtype Body: Scene
    @SceneBuilder var body: Body { get }
    init()
}
extension App {
    public static func main() { fatalError() }
}

public struct WindowGroup<Content: View>: Scene {
    public init(@ViewBuilder content: () -> Content) { fatalError() }
    public var body: Never { fatalError() }
}

// MARK: - State

@propertyWrapper
public struct State<Value> {
    public init(wrappedValue: Value) { fatalError() }
    public init(initialValue: Value) { fatalError() }
    public var wrappedValue: Value {
        get { fatalError() }
        nonmutating set { fatalError() }
    }
    public var projectedValue: Binding<Value> { fatalError() }
}

@propertyWrapper @dynamicMemberLookup
public struct Binding<Value> {
    public init(get: @escaping () -> Value, set: @escaping (Value) -> Void) { fatalError() }
    public var wrappedValue: Value {
        get { fatalError() }
        nonmutating set { fatalError() }
    }
    public var projectedValue: Binding<Value> { self }
    public subscript<Subject>(dynamicMember keyPath: WritableKeyPath<Value, Subject>) -> Binding<Subject> { fatalError() }
}

@propertyWrapper @dynamicMemberLookup
public struct Bindable<Value> {
    public init(wrappedValue: Value) { fatalError() }
    public var wrappedValue: Value {
        get { fatalError() }
        set { fatalError() }
    }
    public var projectedValue: Bindable<Value> { fatalError() }
    public subscript<Subject>(dynamicMember keyPath: ReferenceWritableKeyPath<Value, Subject>) -> Binding<Subject> { fatalError() }
}

@MainActor @preconcurrency @propertyWrapper
public struct StateObject<Value: ObservableObject> {
    public init(wrappedValue: @autoclosure @escaping () -> Value) { fatalError() }
    public var wrappedValue: Value { fatalError() }
    public var projectedValue: Wrapper { fatalError() }

    @dynamicMemberLookup
    public struct Wrapper {
        public subscript<Subject>(dynamicMember keyPath: ReferenceWritableKeyPath<Value, Subject>) -> Binding<Subject> { fatalError() }
    }
}

@propertyWrapper
public struct Environment<Value> {
    public init(_ keyPath: KeyPath<EnvironmentValues, Value>) { fatalError() }
    public var wrappedValue: Value { fatalError() }
}

public struct EnvironmentValues {
    public var dismiss: DismissAction { fatalError() }
    public var horizontalSizeClass: UserInterfaceSizeClass? { fatalError() }
    public var dynamicTypeSize: DynamicTypeSize { fatalError() }
    public var scenePhase: ScenePhase { fatalError() }
}
public enum ScenePhase: Sendable { case background, inactive, active }

@propertyWrapper
public struct FocusState<Value: Hashable> {
    public init() where Value == Bool { fatalError() }
    public init<T: Hashable>() where Value == T? { fatalError() }
    public var wrappedValue: Value {
        get { fatalError() }
        nonmutating set { fatalError() }
    }
    public var projectedValue: Binding { fatalError() }

    public struct Binding {
        public var wrappedValue: Value {
            get { fatalError() }
            nonmutating set { fatalError() }
        }
    }
}
@MainActor
public struct DismissAction {
    public func callAsFunction() {}
}
public enum UserInterfaceSizeClass: Sendable { case compact, regular }
public enum DynamicTypeSize: Sendable {
    case large
    public var isAccessibilitySize: Bool { fatalError() }
}

// MARK: - Words, pictures and shapes

public struct LocalizedStringKey: ExpressibleByStringInterpolation, Equatable {
    public init(stringLiteral value: String) { fatalError() }
}

public struct Text: Primitive {
    public init(_ key: LocalizedStringKey) { fatalError() }
    // An attributed string can be a literal too.
    @_disfavoredOverload
    public init(_ text: AttributedString) { fatalError() }
    public init(verbatim: String) { fatalError() }
    public func monospacedDigit() -> Text { self }
    public func font(_ font: Font?) -> Text { self }

    public struct LineStyle: Hashable, Sendable {
        public struct Pattern: Sendable {
            public static let dash: Pattern = { fatalError() }()
        }
        public init(pattern: Pattern, color: Color? = nil) { fatalError() }
    }
}
public struct Image: Primitive {
    public init(systemName: String) { fatalError() }
}
public struct Label<Title: View, Icon: View>: Primitive {
    public init(@ViewBuilder title: () -> Title, @ViewBuilder icon: () -> Icon) { fatalError() }
}
extension Label where Title == Text, Icon == Image {
    public init(_ titleKey: LocalizedStringKey, systemImage: String) { fatalError() }
}

public struct Font: Sendable {
    public enum Weight: Sendable { case medium, semibold, bold }
    public static let body: Font = { fatalError() }()
    public static let callout: Font = { fatalError() }()
    public static let caption: Font = { fatalError() }()
    public static let footnote: Font = { fatalError() }()
    public static let headline: Font = { fatalError() }()
    public static let largeTitle: Font = { fatalError() }()
    public static let subheadline: Font = { fatalError() }()
    public static let title: Font = { fatalError() }()
    public static let title2: Font = { fatalError() }()
    public func weight(_ weight: Weight) -> Font { self }
}

public protocol ShapeStyle: Sendable {}
public struct Color: ShapeStyle, Hashable, Sendable {
    public init(_ name: String) { fatalError() }
    public func opacity(_ opacity: Double) -> Color { self }
}
extension Color: Primitive {}
public struct HierarchicalShapeStyle: ShapeStyle {}
extension ShapeStyle where Self == HierarchicalShapeStyle {
    public static var secondary: HierarchicalShapeStyle { fatalError() }
}
public protocol Shape: Sendable, View {}
public enum RoundedCornerStyle { case circular, continuous }
public protocol InsettableShape: Shape {}
extension InsettableShape {
    public func strokeBorder<S: ShapeStyle>(_ content: S, style: StrokeStyle) -> some View { self }
}
public struct StrokeStyle: Sendable {
    public init(lineWidth: CGFloat = 1, dash: [CGFloat] = []) { fatalError() }
}
public struct RoundedRectangle: InsettableShape, Primitive {
    public init(cornerRadius: CGFloat, style: RoundedCornerStyle = .continuous) { fatalError() }
}
// Foundation's, where it is Apple's.
extension String {
    public init(localized key: LocalizationValue) { fatalError() }

    public struct LocalizationValue: ExpressibleByStringInterpolation {
        public init(stringLiteral value: String) { fatalError() }
        public init(stringInterpolation: StringInterpolation) { fatalError() }

        public struct StringInterpolation: StringInterpolationProtocol {
            public init(literalCapacity: Int, interpolationCount: Int) { fatalError() }
            public mutating func appendLiteral(_ literal: String) {}
            public mutating func appendInterpolation(_ text: String) {}
            public mutating func appendInterpolation(_ number: Int, specifier: String) {}
        }
    }
}
extension URL {
    public func startAccessingSecurityScopedResource() -> Bool { fatalError() }
    public func stopAccessingSecurityScopedResource() { fatalError() }
}
// The scope of SwiftUI's attributes of an attributed string.
extension AttributedString {
    public var backgroundColor: Color? {
        get { fatalError() }
        set { fatalError() }
    }
    public var font: Font? {
        get { fatalError() }
        set { fatalError() }
    }
    public var underlineStyle: Text.LineStyle? {
        get { fatalError() }
        set { fatalError() }
    }
}

// Accessibility's, which SwiftUI exports.
public enum AccessibilityNotification {
    public struct Announcement {
        public init(_ text: String) { fatalError() }
        public func post() { fatalError() }
    }
}

// MARK: - Layout

public enum HorizontalAlignment { case leading, center, trailing }
public enum VerticalAlignment { case top, center, firstTextBaseline }
public enum Alignment { case leading, center }
public enum Axis {
    case horizontal, vertical
    public struct Set: OptionSet, Sendable {
        public let rawValue: Int
        public init(rawValue: Int) { self.rawValue = rawValue }
        public static let horizontal = Set(rawValue: 1)
        public static let vertical = Set(rawValue: 2)
    }
}
public struct Edge {
    public struct Set: OptionSet, Sendable {
        public let rawValue: Int
        public init(rawValue: Int) { self.rawValue = rawValue }
        public static let horizontal = Set(rawValue: 1)
        public static let vertical = Set(rawValue: 2)
        public static let all = Set(rawValue: 3)
    }
}

public struct VStack<Content: View>: Primitive {
    public init(alignment: HorizontalAlignment = .center, spacing: CGFloat? = nil, @ViewBuilder content: () -> Content) { fatalError() }
}
public struct LazyVStack<Content: View>: Primitive {
    public init(alignment: HorizontalAlignment = .center, spacing: CGFloat? = nil, @ViewBuilder content: () -> Content) { fatalError() }
}
public struct HStack<Content: View>: Primitive {
    public init(alignment: VerticalAlignment = .center, spacing: CGFloat? = nil, @ViewBuilder content: () -> Content) { fatalError() }
}
public struct ZStack<Content: View>: Primitive {
    public init(alignment: Alignment = .center, @ViewBuilder content: () -> Content) { fatalError() }
}
public protocol Layout {}
public struct HStackLayout: Layout {
    public init(alignment: VerticalAlignment = .center, spacing: CGFloat? = nil) { fatalError() }
}
public struct VStackLayout: Layout {
    public init(alignment: HorizontalAlignment = .center, spacing: CGFloat? = nil) { fatalError() }
}
public struct AnyLayout: Layout {
    public init<L: Layout>(_ layout: L) { fatalError() }
    public func callAsFunction<Content: View>(@ViewBuilder _ content: () -> Content) -> some View { content() }
}
public struct ViewThatFits<Content: View>: Primitive {
    public init(in axes: Axis.Set = [.horizontal, .vertical], @ViewBuilder content: () -> Content) { fatalError() }
}
public struct ScrollView<Content: View>: Primitive {
    public init(_ axes: Axis.Set = .vertical, @ViewBuilder content: () -> Content) { fatalError() }
}
@MainActor
public struct ScrollViewProxy {
    public func scrollTo<ID: Hashable>(_ id: ID, anchor: UnitPoint? = nil) {}
}
public enum UnitPoint: Sendable { case center }
public struct ScrollViewReader<Content: View>: Primitive {
    public init(@ViewBuilder content: @escaping (ScrollViewProxy) -> Content) { fatalError() }
}
public struct DisclosureGroup<Label: View, Content: View>: Primitive {
    public init(@ViewBuilder content: @escaping () -> Content, @ViewBuilder label: () -> Label) { fatalError() }
}
public struct Spacer: Primitive {
    public init(minLength: CGFloat? = nil) { fatalError() }
}
public struct Divider: Primitive {
    public init() { fatalError() }
}
public struct Form<Content: View>: Primitive {
    public init(@ViewBuilder content: () -> Content) { fatalError() }
}
public struct List<Content: View>: Primitive {
    public init(@ViewBuilder content: () -> Content) { fatalError() }
}
public struct Section<Header: View, Content: View>: Primitive {}
extension Section where Header == EmptyView {
    public init(@ViewBuilder content: () -> Content) { fatalError() }
}
extension Section where Header == Text {
    public init(_ titleKey: LocalizedStringKey, @ViewBuilder content: () -> Content) { fatalError() }
}
extension Section {
    public init(header: Header, @ViewBuilder content: () -> Content) { fatalError() }
}
public struct ForEach<Data: RandomAccessCollection, ID: Hashable, Content> {}
extension ForEach: View where Content: View {
    public var body: Never { fatalError() }
    public init(_ data: Data, id: KeyPath<Data.Element, ID>, @ViewBuilder content: @escaping (Data.Element) -> Content) { fatalError() }
    public func onDelete(perform action: ((IndexSet) -> Void)?) -> some View { self }
}
extension ForEach where Content: View, Data.Element: Identifiable, ID == Data.Element.ID {
    public init(_ data: Data, @ViewBuilder content: @escaping (Data.Element) -> Content) { fatalError() }
}
public struct NavigationStack<Root: View>: Primitive {
    public init(@ViewBuilder root: () -> Root) { fatalError() }
}
public struct NavigationView<Content: View>: Primitive {
    public init(@ViewBuilder content: () -> Content) { fatalError() }
}
public struct ContentUnavailableView<Label: View, Description: View>: Primitive {
    public init(@ViewBuilder label: () -> Label, @ViewBuilder description: () -> Description) { fatalError() }
}

public struct Tab<Content: View>: TabContent {
    public init(_ titleKey: LocalizedStringKey, systemImage: String, @ViewBuilder content: () -> Content) { fatalError() }
}
public protocol TabContent {}
@resultBuilder
public enum TabContentBuilder {
    public static func buildBlock<each Content: TabContent>(_ content: repeat each Content) -> Tabs<(repeat each Content)> { fatalError() }
    public struct Tabs<Content>: TabContent {}
}
public struct TabView<Content: TabContent>: Primitive {
    public init(@TabContentBuilder content: () -> Content) { fatalError() }
}

// MARK: - Controls

public struct ButtonRole: Sendable {
    public static let destructive: ButtonRole = { fatalError() }()
}
public struct Button<Label: View>: Primitive {}
extension Button where Label == Text {
    public init(_ titleKey: LocalizedStringKey, action: @escaping @MainActor () -> Void) { fatalError() }
    public init(_ titleKey: LocalizedStringKey, role: ButtonRole?, action: @escaping @MainActor () -> Void) { fatalError() }
}
extension Button where Label == SwiftUI.Label<Text, Image> {
    public init(_ titleKey: LocalizedStringKey, systemImage: String, action: @escaping @MainActor () -> Void) { fatalError() }
    public init(_ titleKey: LocalizedStringKey, systemImage: String, role: ButtonRole?, action: @escaping @MainActor () -> Void) {
        fatalError()
    }
}
public struct Toggle<Label: View>: Primitive {
    public init(isOn: Binding<Bool>, @ViewBuilder label: () -> Label) { fatalError() }
}
extension Toggle where Label == Text {
    public init(_ titleKey: LocalizedStringKey, isOn: Binding<Bool>) { fatalError() }
}
public struct Picker<Selection: Hashable, Content: View>: Primitive {
    public init(_ titleKey: LocalizedStringKey, selection: Binding<Selection>, @ViewBuilder content: () -> Content) { fatalError() }
}
public struct Stepper<Label: View>: Primitive {
    public init<V: Strideable>(
        value: Binding<V>, in bounds: ClosedRange<V>, step: V.Stride = 1, @ViewBuilder label: () -> Label,
        onEditingChanged: @escaping (Bool) -> Void = { _ in }
    ) { fatalError() }
}
public struct TextField: Primitive {
    public init(_ titleKey: LocalizedStringKey, text: Binding<String>) { fatalError() }
    public init(_ titleKey: LocalizedStringKey, text: Binding<String>, axis: Axis) { fatalError() }
}
public struct ProgressView<Label: View, CurrentValueLabel: View>: Primitive {}
extension ProgressView where Label == EmptyView, CurrentValueLabel == EmptyView {
    public init() { fatalError() }
    public init<V: BinaryFloatingPoint>(value: V?, total: V = 1.0) { fatalError() }
}
extension ProgressView where Label == Text, CurrentValueLabel == EmptyView {
    public init(_ titleKey: LocalizedStringKey) { fatalError() }
}
extension ProgressView where CurrentValueLabel == EmptyView {
    public init<V: BinaryFloatingPoint>(value: V?, total: V = 1.0, @ViewBuilder label: () -> Label) { fatalError() }
}
extension ProgressView {
    public init<V: BinaryFloatingPoint>(
        value: V?, total: V = 1.0, @ViewBuilder label: () -> Label, @ViewBuilder currentValueLabel: () -> CurrentValueLabel
    ) { fatalError() }
}
public struct ShareLink<Label: View>: Primitive {
    public init(item: URL, @ViewBuilder label: () -> Label) { fatalError() }
}

// MARK: - Modifiers

public enum TextSelection { case enabled, disabled }
public enum NavigationBarTitleDisplayMode { case automatic, inline, large }
public enum ScrollDismissesKeyboardMode { case interactively }
public enum PickerStyleName { case menu }
public enum ButtonStyleName { case borderedProminent }
public enum LabelStyleName { case iconOnly }
public enum TextFieldStyleName { case roundedBorder }
public enum NavigationViewStyleName { case stack }
public enum AccessibilityChildBehavior { case combine, ignore, contain }
public struct Animation: Sendable {
    public static let `default`: Animation = { fatalError() }()
}
public struct ContentTransition: Sendable {
    public static func numericText(countsDown: Bool = false) -> ContentTransition { fatalError() }
}
public enum ToolbarItemPlacement { case confirmationAction, bottomBar, keyboard }
public protocol ToolbarContent {}
public struct ToolbarItem<Content: View>: ToolbarContent {
    public init(placement: ToolbarItemPlacement, @ViewBuilder content: () -> Content) { fatalError() }
}
public struct ToolbarItemGroup<Content: View>: ToolbarContent {
    public init(placement: ToolbarItemPlacement, @ViewBuilder content: () -> Content) { fatalError() }
}
@resultBuilder
public enum ToolbarContentBuilder {
    public static func buildBlock<each Content: ToolbarContent>(_ content: repeat each Content) -> Bar { fatalError() }
    public static func buildIf<Content: ToolbarContent>(_ content: Content?) -> Bar { fatalError() }
    public struct Bar: ToolbarContent {}
}

extension View {
    public func accessibilityElement(children: AccessibilityChildBehavior) -> some View { self }
    public func accessibilityHidden(_ hidden: Bool) -> some View { self }
    public func accessibilityLabel(_ label: Text) -> some View { self }
    public func accessibilityValue(_ value: Text) -> some View { self }
    public func animation<V: Equatable>(_ animation: Animation?, value: V) -> some View { self }
    public func background<S: ShapeStyle>(_ style: S) -> some View { self }
    public func background<S: ShapeStyle, T: Shape>(_ style: S, in shape: T) -> some View { self }
    public func buttonStyle(_ style: ButtonStyleName) -> some View { self }
    public func contentTransition(_ transition: ContentTransition) -> some View { self }
    public func disabled(_ disabled: Bool) -> some View { self }
    public func fileImporter(
        isPresented: Binding<Bool>, allowedContentTypes: [UTType],
        onCompletion: @escaping @MainActor (Result<URL, any Error>) -> Void
    ) -> some View { self }
    public func fixedSize(horizontal: Bool, vertical: Bool) -> some View { self }
    public func focused<Value: Hashable>(_ binding: FocusState<Value>.Binding, equals value: Value) -> some View { self }
    public func font(_ font: Font?) -> some View { self }
    public func foregroundStyle<S: ShapeStyle>(_ style: S) -> some View { self }
    public func frame(width: CGFloat? = nil, height: CGFloat? = nil, alignment: Alignment = .center) -> some View { self }
    public func frame(
        minWidth: CGFloat? = nil, maxWidth: CGFloat? = nil, minHeight: CGFloat? = nil, maxHeight: CGFloat? = nil,
        alignment: Alignment = .center
    ) -> some View { self }
    public func id<ID: Hashable>(_ id: ID) -> some View { self }
    public func labelStyle(_ style: LabelStyleName) -> some View { self }
    public func lineLimit(_ limit: ClosedRange<Int>) -> some View { self }
    public func monospaced() -> some View { self }
    public func monospacedDigit() -> some View { self }
    public func navigationBarTitleDisplayMode(_ mode: NavigationBarTitleDisplayMode) -> some View { self }
    public func navigationTitle(_ titleKey: LocalizedStringKey) -> some View { self }
    public func navigationTitle(_ title: Text) -> some View { self }
    public func navigationViewStyle(_ style: NavigationViewStyleName) -> some View { self }
    public func onChange<V: Equatable>(of value: V, _ action: @escaping @MainActor (V, V) -> Void) -> some View { self }
    // Before iOS 17.
    public func onChange<V: Equatable>(of value: V, perform action: @escaping @MainActor (V) -> Void) -> some View { self }
    public func onDisappear(perform action: @escaping @MainActor () -> Void) -> some View { self }
    public func onSubmit(_ action: @escaping @MainActor () -> Void) -> some View { self }
    public func overlay<Content: View>(@ViewBuilder content: () -> Content) -> some View { self }
    public func padding(_ length: CGFloat) -> some View { self }
    public func padding(_ edges: Edge.Set = .all, _ length: CGFloat? = nil) -> some View { self }
    public func pickerStyle(_ style: PickerStyleName) -> some View { self }
    public func scrollDismissesKeyboard(_ mode: ScrollDismissesKeyboardMode) -> some View { self }
    public func sheet<Content: View>(isPresented: Binding<Bool>, @ViewBuilder content: @escaping () -> Content) -> some View { self }
    public func tag<V: Hashable>(_ tag: V) -> some View { self }
    public func task(@_inheritActorContext _ action: @escaping @Sendable () async -> Void) -> some View { self }
    public func task<T: Equatable>(id value: T, @_inheritActorContext _ action: @escaping @Sendable () async -> Void) -> some View {
        self
    }
    public func textFieldStyle(_ style: TextFieldStyleName) -> some View { self }
    public func textSelection(_ selection: TextSelection) -> some View { self }
    public func tint(_ tint: Color?) -> some View { self }
    public func toolbar<Content: ToolbarContent>(@ToolbarContentBuilder content: () -> Content) -> some View { self }
}
