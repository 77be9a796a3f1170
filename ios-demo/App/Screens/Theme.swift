import AppParts
import SwiftUI

/// The few things that all screens share: colours of the asset catalog, and how numbers and cards look.
enum Theme {
    static let student = Color("Student")
    static let reference = Color("Reference")
    static let found = Color("Found")
    static let warning = Color("Warning")
    static let card = Color("Card")
    static let ground = Color("Ground")
    static let spacing: CGFloat = 16
    static let corner: CGFloat = 14
    /// The least that a finger hits, in points.
    static let target: CGFloat = 44
}

/// A block of a screen that belongs together.
struct Card<Content: View>: View {
    @ViewBuilder let content: Content

    var body: some View {
        VStack(alignment: .leading, spacing: 12) { content }
            .frame(maxWidth: .infinity, alignment: .leading)
            .padding(Theme.spacing)
            .background(Theme.card, in: RoundedRectangle(cornerRadius: Theme.corner, style: .continuous))
    }
}

/// A screen of cards that scrolls, so that nothing is cut where text is large and no field lies behind the keyboard.
struct Cards<Content: View>: View {
    /// The field that is written in; nil for a screen without fields.
    private let writing: FocusState<Field?>.Binding?
    private let content: Content

    init(writing: FocusState<Field?>.Binding? = nil, @ViewBuilder content: () -> Content) {
        self.writing = writing
        self.content = content()
    }

    var body: some View {
        ScrollViewReader { proxy in
            ScrollView {
                LazyVStack(spacing: Theme.spacing) { content }
                    .padding(Theme.spacing)
                    .frame(maxWidth: 720)
                    .frame(maxWidth: .infinity)
            }
            .background(Theme.ground)
            .scrollDismissesKeyboard(.interactively)
            .onChange(of: writing?.wrappedValue) { _, field in
                if let field { proxy.scrollTo(field, anchor: .center) }
            }
            .toolbar {
                ToolbarItemGroup(placement: .keyboard) {
                    Spacer()
                    // A field of several lines takes the return key for a line.
                    Button("Done") { writing?.wrappedValue = nil }
                }
            }
        }
    }
}

/// Has a reader of the screen say something that was not there before: a final figure, and none that still changes.
@MainActor
func announce(_ said: String) { AccessibilityNotification.Announcement(said).post() }

extension View {
    /// Does something when a screen is left: for another one, or for another app.
    func onLeave(_ phase: ScenePhase, _ action: @escaping @MainActor () -> Void) -> some View {
        onDisappear(perform: action).onChange(of: phase) { _, new in
            if new == .background { action() }
        }
    }
}

/// A name and a value; one below the other where they do not fit beside each other.
struct Fact: View {
    let name: LocalizedStringKey
    let value: String

    init(_ name: LocalizedStringKey, _ value: String) {
        self.name = name
        self.value = value
    }

    var body: some View {
        ViewThatFits(in: .horizontal) {
            HStack(alignment: .firstTextBaseline) {
                Text(name).foregroundStyle(.secondary)
                Spacer(minLength: 12)
                Text(verbatim: value).monospacedDigit()
            }
            VStack(alignment: .leading, spacing: 2) {
                Text(name).foregroundStyle(.secondary)
                Text(verbatim: value).monospacedDigit()
            }
        }
        .font(.callout)
        .accessibilityElement(children: .combine)
    }
}

/// Something that is good to know, and no error.
struct Notice: View {
    private let sentence: String
    private let systemImage: String

    init(_ sentence: String, systemImage: String = "info.circle") {
        self.sentence = sentence
        self.systemImage = systemImage
    }

    var body: some View {
        Label {
            Text(verbatim: sentence).fixedSize(horizontal: false, vertical: true)
        } icon: {
            Image(systemName: systemImage)
        }
        .font(.callout)
        .foregroundStyle(.secondary)
        .accessibilityElement(children: .combine)
    }
}

/// What went wrong, in the sentence that the model has for it.
struct Problem: View {
    let sentence: String

    var body: some View {
        Label {
            Text(verbatim: sentence).fixedSize(horizontal: false, vertical: true)
        } icon: {
            Image(systemName: "exclamationmark.triangle.fill").foregroundStyle(Theme.warning)
        }
        .font(.callout)
        .accessibilityElement(children: .combine)
    }
}

/// The choice between the shipped models.
struct ModelPicker: View {
    let title: LocalizedStringKey
    let models: [ShelvedModel]
    @Binding var selection: ShelvedModel.ID

    var body: some View {
        Picker(title, selection: $selection) {
            ForEach(models) { model in
                Text(verbatim: "\(model.name) · \(Words.detail(model))").tag(model.id)
            }
        }
        .pickerStyle(.menu)
        .frame(minHeight: Theme.target)
    }
}
