package pocketbert.app

import android.content.res.AssetManager
import pocketbert.core.contract.Files
import pocketbert.core.contract.FoundFile
import pocketbert.core.contract.Model
import java.io.File
import java.io.IOException
import java.io.InputStream

/** The models that `pocketbert ship` put into the app's assets. */
class AssetFiles(private val assets: AssetManager, private val root: String = ROOT) : Files {
    override fun open(path: String): InputStream = assets.open("$root/$path", AssetManager.ACCESS_STREAMING)

    /** Assets are what the APK holds: there is no link among them, and only reading one tells its size. */
    override fun list(folder: String): List<FoundFile> {
        val found = ArrayList<FoundFile>()
        val pending = ArrayDeque(listOf(""))
        while (pending.isNotEmpty()) {
            val below = pending.removeLast()
            for (name in assets.list("$root/$folder/$below".trimEnd('/')).orEmpty()) {
                val path = if (below.isEmpty()) name else "$below/$name"
                // An asset that has nothing below it is a file; the system does not tell of empty folders.
                if (assets.list("$root/$folder/$path").isNullOrEmpty()) {
                    found.add(FoundFile(path, null, regular = true))
                } else {
                    pending.add(path)
                }
            }
        }
        if (found.isEmpty()) throw IOException("there is no $folder among the assets")
        return found
    }

    companion object {
        const val ROOT = "model"
    }
}

/**
 * Model files as files of the file system, which a runtime maps: copied out of the APK once, and kept under the digest of what
 * was verified. What another version of the app left is removed.
 */
class CopiedModels(private val files: Files, private val folder: File) {
    /**
     * Returns the file of a model, which it copies where it is not there yet.
     *
     * @throws IOException there is no room, or the asset cannot be read.
     */
    @Synchronized
    fun file(model: Model): File {
        val place = File(folder, "${model.entry.digest}/${model.signature.file}")
        if (place.isFile) return place
        val aside = File(folder, "${model.entry.digest}.new")
        aside.deleteRecursively()
        if (!aside.mkdirs()) throw IOException("the folder $aside cannot be made")
        files.open(model.file).use { from -> File(aside, model.signature.file).outputStream().use { from.copyTo(it) } }
        // In one rename, so that half a copy is never taken for one.
        if (!aside.renameTo(checkNotNull(place.parentFile))) throw IOException("$aside cannot be renamed")
        return place
    }

    /** Removes the copies of models that are not shipped any more. */
    @Synchronized
    fun keep(digests: Set<String>) = folder.listFiles().orEmpty().filter { it.name !in digests }.forEach { it.deleteRecursively() }
}
