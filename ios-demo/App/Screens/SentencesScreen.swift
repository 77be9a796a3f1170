import AppModels
import SwiftUI
import UniformTypeIdentifiers

/// The set of sentences that is searched: to edit where it is small, and to import from a text file with one on each line.
struct SentencesScreen: View {
    let search: SearchModel
    @Environment(\.dismiss) private var dismiss
    @State private var new = ""
    @State private var imports = false

    var body: some View {
        NavigationStack {
            List {
                Section {
                    if let index = search.index { IndexRows(index: index, search: search) }
                    // Texts of an index are too many to edit.
                    if search.index == nil {
                        HStack {
                            TextField("A new sentence", text: $new).onSubmit(add)
                            Button("Add", systemImage: "plus.circle.fill", action: add)
                                .labelStyle(.iconOnly)
                                .frame(minWidth: Theme.target, minHeight: Theme.target)
                                .disabled(new.isEmpty)
                        }
                    }
                    if let problem = search.problem { Problem(sentence: Words.problem(problem)) }
                }
                if search.index == nil {
                    Section("Sentences") {
                        // By value: a row is drawn once more while it goes, when the set is shorter already.
                        ForEach(Array(search.sentences.enumerated()), id: \.offset) { Text(verbatim: $0.element) }
                            .onDelete { search.remove(at: $0) }
                    }
                }
            }
            .scrollDismissesKeyboard(.interactively)
            .navigationTitle("Sentences")
            .navigationBarTitleDisplayMode(.inline)
            .toolbar {
                ToolbarItem(placement: .confirmationAction) { Button("Done") { dismiss() } }
                ToolbarItemGroup(placement: .bottomBar) {
                    Button("Import a text file…") { imports = true }
                    Spacer()
                    Button("Examples", role: .destructive) { search.reset() }
                }
            }
            .fileImporter(isPresented: $imports, allowedContentTypes: [.plainText]) { result in
                guard case .success(let file) = result else { return }
                // A file of another app may be read between these two calls alone.
                let allowed = file.startAccessingSecurityScopedResource()
                Task {
                    await search.importFile(file)
                    if allowed { file.stopAccessingSecurityScopedResource() }
                }
            }
        }
    }

    private func add() {
        search.add(new)
        new = ""
    }
}

/// What the index holds that is searched; where it is being filled, how far that is, why it rests, how to stop it, and
/// by which model.
struct IndexRows: View {
    let index: SearchModel.Indexed
    let search: SearchModel

    var body: some View {
        if let texts = index.texts {
            ProgressView(value: Double(index.passages), total: Double(max(texts, 1))) {
                Text("Indexing the texts")
            } currentValueLabel: {
                Text(verbatim: "\(index.passages) / \(texts)").monospacedDigit()
            }
            if let rest = index.rest { Notice(Words.rest(rest), systemImage: "pause.circle") }
            if index.isStopped {
                Button("Go on indexing") { search.goOn() }.frame(minHeight: Theme.target)
            } else {
                Button("Stop indexing") { search.stop() }.frame(minHeight: Theme.target)
            }
            if let other = index.other {
                if index.isFast {
                    Button("Index with \(other) again") { search.preferFast(false) }.frame(minHeight: Theme.target)
                } else {
                    Button("Index with \(other), which is faster and less exact") { search.preferFast(true) }
                        .frame(minHeight: Theme.target)
                }
            }
        } else {
            Text(verbatim: Words.passages(index.passages)).font(.callout).foregroundStyle(.secondary)
        }
    }
}
