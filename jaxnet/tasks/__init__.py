"""What is minimized and measured: images in classes, with their augmentation."""
